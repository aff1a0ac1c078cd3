"""The runs that this console has seen with their pictures, and the last readiness reports, per host, in SQLite: so that they
can be shown before the host answers, and after it is gone.

The file is a cache of what containers said; it can be thrown away. A damaged one is set aside, never repaired in place.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

if TYPE_CHECKING:
    from eagle3.core.readiness.report import Report
    from eagle3.core.records import RunSummary

MIGRATIONS = (
    """
    CREATE TABLE IF NOT EXISTS runs (
        host TEXT NOT NULL, workspace TEXT NOT NULL, run_id TEXT NOT NULL,
        summary TEXT NOT NULL, seen_at REAL NOT NULL,
        PRIMARY KEY (host, workspace, run_id)
    );
    CREATE TABLE IF NOT EXISTS looks (
        host TEXT NOT NULL, workspace TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (host, workspace)
    );
    """,
    """
    CREATE TABLE IF NOT EXISTS reports (
        host TEXT NOT NULL, workspace TEXT NOT NULL, spec_hash TEXT NOT NULL,
        report TEXT NOT NULL, ages TEXT NOT NULL, learnt_at REAL NOT NULL,
        PRIMARY KEY (host, workspace, spec_hash)
    );
    """,
    """
    CREATE TABLE IF NOT EXISTS pictures (
        host TEXT NOT NULL, workspace TEXT NOT NULL, run_id TEXT NOT NULL,
        picture BLOB NOT NULL, kept_at REAL NOT NULL,
        PRIMARY KEY (host, workspace, run_id)
    );
    """,
)
"""What each version of the file added; ``user_version`` counts those that it has."""
REPORTS_KEPT = 50
"""Reports kept for a host; the oldest go first."""
PICTURES_BYTES = 64 << 20
"""Of all pictures of runs together; the oldest go first."""
KEPT_S = 365 * 86400.0
"""Runs and pictures that nobody has seen for longer go."""


class NewerCatalog(sqlite3.DatabaseError):
    """The file was written by a newer console."""


def default_path() -> Path:
    """``catalog.sqlite`` in the user's state folder."""
    return platformdirs.user_state_path("eagle3-console") / "catalog.sqlite"


class Catalog:
    """``problem`` is a sentence for the operator where the file could not be used as it was; the console goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        self._seen: dict[tuple[str, str, str], str] = {}
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._connect(self.path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                return self._in_memory(str(error))
            return self._set_aside(error)
        except OSError as error:
            return self._in_memory(error.strerror or str(error))

    def _set_aside(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        newer = isinstance(error, NewerCatalog)
        aside = self.path.with_name(self.path.name + (".newer" if newer else ".damaged"))
        try:
            for suffix in ("", "-wal", "-shm"):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    source.replace(aside.with_name(aside.name + suffix))
            what = "was written by a newer console" if newer else f"was damaged ({error})"
            self.problem = f"The list of known runs {what}; it was set aside as {aside} and begun anew."
            return self._connect(self.path)
        except (OSError, sqlite3.Error) as again:
            return self._in_memory(str(again))

    def _in_memory(self, why: str) -> sqlite3.Connection:
        self.problem = f"The list of known runs cannot be kept in {self.path} ({why}); it lasts until you quit."
        return self._connect(None)

    @staticmethod
    def _connect(path: Path | None) -> sqlite3.Connection:
        db = sqlite3.connect(path or ":memory:", timeout=1.0, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            _migrate(db)
            db.execute("SELECT count(*) FROM runs").fetchone()
            db.execute("SELECT count(*) FROM reports").fetchone()
            db.execute("SELECT count(*) FROM pictures").fetchone()
        except sqlite3.Error:
            db.close()
            raise
        return db

    def save(self, host: str, workspace: str, runs: Iterable[RunSummary], at: float) -> None:
        """Keep what was said of these runs; one that did not change state since is not written again."""
        for run in runs:
            key = (host, workspace, run.run_id)
            mark = f"{run.state} {run.attempt} {run.stages}"
            if self._seen.get(key) == mark:
                continue
            try:
                self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", (*key, run.model_dump_json(), at))
            except ValueError:
                continue  # a text of it is none that can be kept (half a character); the host still has the run
            except sqlite3.Error as error:
                self.problem = f"The list of known runs in {self.path} cannot be written ({error}); the host still has them."
                return
            self._seen[key] = mark

    def runs(self, host: str, workspace: str) -> list[tuple[str, float]]:
        """The runs last seen on ``host`` as texts for `summaries`, newest first, each with when (this machine's Unix seconds)."""
        try:
            return self._db.execute(
                "SELECT summary, seen_at FROM runs WHERE host = ? AND workspace = ? ORDER BY seen_at DESC LIMIT 200",
                (host, workspace),
            ).fetchall()
        except sqlite3.Error as error:
            self.problem = f"The list of known runs in {self.path} cannot be read ({error}); the host still has them."
            return []

    def save_report(
        self, host: str, workspace: str, spec_hash: str, report: Report, ages: Mapping[str, float], at: float
    ) -> None:
        """Keep the last readiness report for a spec, with when each check was learnt and when the whole (this machine's
        Unix seconds)."""
        try:
            row = (host, workspace, spec_hash, report.model_dump_json(), json.dumps(dict(ages)), at)
            self._db.execute("INSERT OR REPLACE INTO reports VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.execute(
                "DELETE FROM reports WHERE host = ? AND rowid NOT IN "
                "(SELECT rowid FROM reports WHERE host = ? ORDER BY learnt_at DESC LIMIT ?)",
                (host, host, REPORTS_KEPT),
            )
        except (sqlite3.Error, ValueError) as error:
            self.problem = f"The readiness report cannot be kept in {self.path} ({error}); it lasts until you quit."

    def report(self, host: str, workspace: str, spec_hash: str) -> tuple[Report, dict[str, float], float] | None:
        """The last report for this spec, the age marks of its checks, and when it was learnt; None where there is none."""
        try:
            row = self._db.execute(
                "SELECT report, ages, learnt_at FROM reports WHERE host = ? AND workspace = ? AND spec_hash = ?",
                (host, workspace, spec_hash),
            ).fetchone()
            if row is None:
                return None
            from eagle3.core.readiness.report import Report  # with pydantic: not before the first picture

            ages = {str(key): float(value) for key, value in json.loads(row[1]).items()}
            return Report.model_validate_json(row[0]), ages, float(row[2])
        except sqlite3.Error as error:
            self.problem = f"The readiness report in {self.path} cannot be read ({error}); the host says it anew."
        except (AttributeError, TypeError, ValueError):  # written by another version; the host says it anew
            return None
        return None

    def save_picture(self, host: str, workspace: str, run_id: str, picture: bytes, at: float) -> None:
        """Keep the picture of a run as of ``at``; what is too old or too much goes."""
        try:
            self._db.execute("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?, ?, ?)", (host, workspace, run_id, picture, at))
            self._db.execute("DELETE FROM pictures WHERE kept_at < ?", (at - KEPT_S,))
            self._db.execute("DELETE FROM runs WHERE seen_at < ?", (at - KEPT_S,))
            self._db.execute(
                "DELETE FROM pictures WHERE rowid IN (SELECT rowid FROM (SELECT rowid, sum(length(picture)) "
                "OVER (ORDER BY kept_at DESC, rowid DESC) AS size FROM pictures) WHERE size > ?)",
                (PICTURES_BYTES,),
            )
        except sqlite3.Error as error:
            self.problem = f"The picture of {run_id} cannot be kept in {self.path} ({error}); the host still has the run."

    def picture(self, host: str, workspace: str, run_id: str) -> tuple[bytes, float] | None:
        """The picture of a run and as of when it is; None where there is none."""
        try:
            row = self._db.execute(
                "SELECT picture, kept_at FROM pictures WHERE host = ? AND workspace = ? AND run_id = ?",
                (host, workspace, run_id),
            ).fetchone()
        except sqlite3.Error:
            return None  # told where the runs are read
        return (bytes(row[0]), float(row[1])) if row else None

    def hosts(self) -> list[str]:
        """The hosts that somebody looked at from here, the last one first."""
        try:
            rows = self._db.execute("SELECT host FROM looks GROUP BY host ORDER BY max(at) DESC LIMIT 50").fetchall()
        except sqlite3.Error:
            return []  # told where the runs are read
        return [str(host) for (host,) in rows]

    def look(self, host: str, workspace: str, at: float) -> None:
        """Somebody looked at this workspace, the last time ``at``."""
        try:
            self._db.execute("INSERT OR REPLACE INTO looks VALUES (?, ?, ?)", (host, workspace, at))
        except sqlite3.Error as error:
            self.problem = f"The list of known runs in {self.path} cannot be written ({error}); the host still has them."

    def looked(self, host: str, workspace: str) -> float | None:
        """When somebody last looked at this workspace from here; None where nobody did."""
        try:
            row = self._db.execute("SELECT at FROM looks WHERE host = ? AND workspace = ?", (host, workspace)).fetchone()
        except sqlite3.Error:
            return None  # told where the runs are read
        return float(row[0]) if row else None

    def close(self) -> None:
        self._db.close()


def summaries(kept: Sequence[tuple[str, float]]) -> list[tuple[RunSummary, float]]:
    """The runs that `Catalog.runs` gave as texts. Its first call loads pydantic: for a thread, after the first picture."""
    from pydantic import ValidationError

    from eagle3.core.records import RunSummary

    found = []
    for text, seen_at in kept:
        try:
            found.append((RunSummary.model_validate_json(text), float(seen_at)))
        except ValidationError:
            continue  # written by another version; the host says it anew
    return found


def _migrate(db: sqlite3.Connection) -> None:
    """Bring the tables to this version, each step once. Raises NewerCatalog for a file of a later one."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise NewerCatalog(f"version {version}, this console knows {len(MIGRATIONS)}")
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        # Two consoles may come here at once: every step may be repeated.
        db.executescript(f"BEGIN IMMEDIATE; {script} PRAGMA user_version = {number}; COMMIT;")
