"""Failing examples of earlier runs, which Hypothesis keeps: those of this machine, and those that several machines share."""

from dataclasses import dataclass
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase, MultiplexedDatabase


@dataclass(frozen=True)
class FailingExamples:
    """Those of one pair and candidate."""

    folder: str
    """Their own, in each database."""
    database: Path | None
    """The folder of this machine's; None to keep nothing."""
    shared: str = ""
    """What several machines share: a folder, or redis://host:port."""

    def of(self, part: str = "") -> ExampleDatabase | None:
        """Where the examples of a part of the run are, beside those of the run itself."""
        if self.database is None:
            return None
        folder = f"{self.folder}{part}"
        own = DirectoryBasedExampleDatabase(self.database / folder)
        if not self.shared:
            return own
        if self.shared.startswith(("redis://", "rediss://")):
            from hypothesis.extra.redis import RedisExampleDatabase
            from redis import Redis

            prefix = f"kernelpair:{folder}:".encode()
            other: ExampleDatabase = RedisExampleDatabase(Redis.from_url(self.shared), key_prefix=prefix)
        else:
            other = DirectoryBasedExampleDatabase(Path(self.shared) / folder)
        return MultiplexedDatabase(own, other)

    def may_be_there(self, part: str = "") -> bool:
        """Whether an earlier run may have left some."""
        return self.database is not None and (bool(self.shared) or Path(self.database, f"{self.folder}{part}").is_dir())
