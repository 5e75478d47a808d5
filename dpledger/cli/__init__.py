"""The command line: ``dpledger VERB``. Answers on stdout, everything else on stderr.

Exit status: 0 done, or supported; 1 failed; 2 not decided (undetermined, incomplete, still
running), and, as usual, a command line that makes no sense; 3 refuted; 4 cancelled.
"""

import sys

from dpledger.cli import calc, certificates, datasets, jobs, keys, server
from dpledger.cli.console import errors, make_app
from dpledger.errors import ClientError

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
    """Run the command line; a refusal of the service becomes one line and exit status 1."""
    try:
        app()
    except ClientError as error:
        errors().print(f"error: {error}", style="red", markup=False)
        sys.exit(1)
