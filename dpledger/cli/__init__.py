"""The command line: ``dpledger VERB``. Answers on stdout, everything else on stderr.

Exit status: 0 done, or supported; 1 failed; 2 not decided (undetermined, incomplete, still
running), and, as usual, a command line that makes no sense; 3 refuted; 4 cancelled.
"""

import sys

from dpledger.cli import calc, certificates, datasets, jobs, keys, server
from dpledger.cli.console import cell, errors, make_app
from dpledger.errors import ApiError, ClientError

app = make_app("Privacy budgets, certified accounting, DP-SGD training and audit.")
app.command()(server.up)
app.command()(server.demo)
app.command()(server.version)
app.command()(jobs.check)
app.command()(certificates.verify)
app.add_typer(certificates.app, name="certificates")
app.add_typer(certificates.audit, name="audit")
app.add_typer(jobs.app, name="jobs")
app.add_typer(datasets.app, name="datasets")
app.add_typer(calc.calc, name="calc")
app.add_typer(calc.bounds, name="bounds")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Run the command line; a refusal, or a file that is not there, ends with exit status 1."""
    try:
        app()
    except ApiError as error:
        _refuse(str(error))
        for name, value in error.extra.items():
            errors().print(f"  {name}: {cell(value)}", markup=False)
        sys.exit(1)
    except ClientError as error:
        _refuse(str(error))
        sys.exit(1)
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        _refuse(f"{named}{error.strerror or error}")
        sys.exit(1)


def _refuse(why: str) -> None:
    errors().print(f"error: {why}", style="red", markup=False)
