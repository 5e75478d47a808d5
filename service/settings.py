"""Settings, read from ``DPLEDGER_*`` variables at the two composition roots only."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What an operator may set; every field is documented in docs/settings.md."""

    model_config = SettingsConfigDict(env_prefix="DPLEDGER_", frozen=True)

    data_dir: Path = Field(
        default=Path("dpledger-data"), description="Folder of keys, artifacts, logs and SQLite."
    )
    database_url: str = Field(
        default="", description="SQLAlchemy URL; default: SQLite inside data_dir."
    )
    broker_url: str = Field(
        default="", description="Redis or Valkey URL (redis://, rediss://, redis+socket://)."
    )
    allowed_hosts: list[str] = Field(
        default=["localhost", "127.0.0.1", "[::1]"],
        description="Host headers that the gateway answers to; ['*'] for any.",
    )
    allowed_sources: list[str] = Field(
        default=[], description="Prefixes of data addresses that datasets may name."
    )
    max_body_bytes: int = Field(default=16 * 2**20, gt=0, description="Largest request body.")
    request_threads: int = Field(default=40, gt=0, le=500, description="Requests served at once.")
    calculation_processes: int = Field(
        default=2, gt=0, le=64, description="Processes for slow accounting."
    )
    calculation_timeout_s: float = Field(
        default=60.0, gt=0, description="Longest calculation that a request may ask for."
    )
    lease_s: float = Field(
        default=30.0, gt=0, description="A worker that is silent for so long has lost its job."
    )
    redispatch_after_s: float = Field(
        default=30.0, gt=0, description="A queued job is announced again after so long."
    )
    sweep_every_s: float = Field(default=2.0, gt=0, description="Pause between two sweeps.")
    kill_grace_s: float = Field(
        default=5.0, gt=0, description="Seconds between TERM and KILL of a trainer."
    )
    log_level: str = Field(default="info", description="debug, info, warning or error.")

    def job_folder(self, job_id: str, *, token: int) -> Path:
        """Where the files of one claim of a job are, on the machine that runs it."""
        return self.data_dir / "running" / f"{job_id}-{token}"

    @model_validator(mode="after")
    def _default_database(self) -> Self:
        if not self.database_url:
            url = f"sqlite:///{self.data_dir.absolute() / 'dpledger.db'}"
            object.__setattr__(self, "database_url", url)
        return self
