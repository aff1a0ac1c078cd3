"""A target from a model hub: listed with its size first, held against the disk, downloaded so that an interrupted one goes on.

It goes on by whole files: huggingface_hub 2.4 gives every try of a file a temporary name of its own, so that what a killed
download had of an unfinished file is lost (at most eight files are under way).

The work is huggingface_hub's; ``HF_ENDPOINT`` names another server that speaks its protocol, ``HF_TOKEN`` the key for models
that ask for one. The files gather in a hidden folder beside their place, which gets its name once they are all there and whole.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eagle3.core.wording import bytes_label, duration_label
from eagle3.runner import rundir

Say = Callable[[str], None]

WANTED = (".json", ".safetensors", ".model", ".tiktoken", ".txt", ".jinja", ".py", ".md")
"""Kinds of files that a model is loaded from, at the top of its repository; others (other formats, pictures) are left out."""

FLOOR_BYTES = 1 << 30
"""What stays free of the disk that a target is downloaded to."""

SOURCE_FILE = ".eagle3-source"
"""In a downloaded target: the repository and the commit. Not among the files that a target's fingerprint is of."""

_TELL_EVERY_S = 10.0
_SET_IT = "set HF_TOKEN (of a run: --secret HF_TOKEN)"


class HubError(RuntimeError):
    """The hub does not give the model: one sentence that says why and what to do."""


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit: name and size in bytes of each wanted file."""

    repo: str
    commit: str
    files: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def split_source(source: str) -> tuple[str, str]:
    """Repository and revision of ``OWNER/NAME[@REVISION]``."""
    repo, _, revision = source.partition("@")
    return repo, revision or "main"


def listing(source: str) -> Listing:
    """The wanted files of ``OWNER/NAME[@REVISION]``. Raises HubError."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    repo, revision = split_source(source)
    with _explained(repo, revision):
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
        commit = api.model_info(repo, revision=revision, timeout=30).sha or revision
        tree = api.list_repo_tree(repo, recursive=False, revision=commit)
        files = {entry.path: int(entry.size) for entry in tree if isinstance(entry, RepoFile) and entry.path.endswith(WANTED)}
    if not any(name.endswith(".safetensors") for name in files):
        raise HubError(f"{repo} holds no *.safetensors file; name another repository or convert the model.")
    return Listing(repo, commit, files)


def partial_folder(folder: Path) -> Path:
    """Where the files of ``folder`` gather until they are whole."""
    return folder.with_name(f".{folder.name}.partial")


def missing_bytes(found: Listing, folder: Path) -> int:
    """What is still to be downloaded: all but the files that an interrupted download has left whole."""
    partial = partial_folder(folder)
    return sum(size for name, size in found.files.items() if _size(partial / name) != size)


def no_room(found: Listing, folder: Path) -> str:
    """Why the disk of ``folder`` is too small for what is still to be downloaded; empty where it is not."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free_bytes, needed = shutil.disk_usage(there).free, missing_bytes(found, folder)
    if free_bytes - needed >= FLOOR_BYTES:
        return ""
    return (
        f"{found.repo} needs {bytes_label(needed)} more of its {bytes_label(found.bytes)}, and the disk of {there} has "
        f"{bytes_label(free_bytes)} free, of which {bytes_label(FLOOR_BYTES)} stay; free some space, or set EAGLE3_CACHE to a "
        "folder on another disk."
    )


def download(found: Listing, folder: Path, say: Say) -> None:
    """Bring the files to ``folder``, which must not be there yet. Raises HubError; what has come stays for the next try."""
    from huggingface_hub import snapshot_download

    if short := no_room(found, folder):
        raise HubError(short)
    partial = partial_folder(folder)
    partial.mkdir(parents=True, exist_ok=True)
    for left in partial.rglob("*.incomplete"):  # of a download that was killed: nobody will go on with it
        left.unlink()
    held = found.bytes - missing_bytes(found, folder)
    going_on = f", {bytes_label(held)} of it are there already" if held else ""
    say(f"{found.repo} at {found.commit[:12]}: {len(found.files)} files, {bytes_label(found.bytes)}{going_on}.")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with _explained(found.repo, found.commit), _telling(partial, found.bytes, say):
        snapshot_download(
            found.repo,
            revision=found.commit,
            local_dir=partial,
            cache_dir=partial / ".cache" / "hub",
            allow_patterns=sorted(found.files),
            endpoint=os.environ.get("HF_ENDPOINT") or None,
        )
    for name, size in found.files.items():
        if (have := _size(partial / name)) != size:
            raise HubError(f"{name} of {found.repo} has {have:,} of {size:,} bytes; delete {partial / name}, then try again.")
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    rundir.write_json(partial / SOURCE_FILE, {"v": 1, "repo": found.repo, "commit": found.commit})


def commit_of(folder: Path) -> str:
    """The commit that a target was downloaded at; empty where nothing says it (another's folder, an older version's)."""
    return str(rundir.read_object(folder / SOURCE_FILE).get("commit") or "")


@contextmanager
def _telling(partial: Path, total: int, say: Say) -> Iterator[None]:
    """Say every few seconds how far it is, how fast, and how long it will take."""
    ended = threading.Event()
    began, first = time.monotonic(), _held(partial)

    def tell() -> None:
        while not ended.wait(_TELL_EVERY_S):
            held, seconds = _held(partial), time.monotonic() - began
            rate = (held - first) / seconds
            left = duration_label((total - held) / rate) if rate > 0 and total > held else "–"
            say(f"{bytes_label(min(held, total))} of {bytes_label(total)}, {bytes_label(rate)}/s, {left} left")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join(timeout=5)


@contextmanager
def _explained(repo: str, revision: str) -> Iterator[None]:
    """Turn what the hub's client raises into one sentence."""
    from huggingface_hub import errors

    where = os.environ.get("HF_ENDPOINT") or "the hub"
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(f"{repo} asks for its licence to be accepted; do that on its page, then {_SET_IT}.") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repo} has no revision {revision}; correct target.source.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{where} has no repository {repo}, or it is private; correct target.source, or {_SET_IT}.") from error
    except errors.OfflineModeIsEnabled as error:
        raise HubError(
            f"HF_HUB_OFFLINE is set, so {repo} cannot be downloaded; unset it, or put the model's folder there."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(
            f"{where} cannot be reached for {repo}; check the network, then try again: it goes on from there."
        ) from error
    except errors.HfHubHTTPError as error:
        code = error.response.status_code if error.response is not None else "no status"
        raise HubError(f"{where} answers {repo} with {code}; try again, it goes on from what is there.") from error
    except OSError as error:
        if error.filename or (error.errno is not None and not isinstance(error, ConnectionError)):
            raise
        raise HubError(f"{where} cannot be reached for {repo} ({_line(error)}); try again, it goes on from there.") from error
    except Exception as error:
        # The client's own transport raises classes of its own; a defect of ours is no transport's.
        if not type(error).__module__.startswith(("httpx", "httpcore", "hf_xet", "huggingface_hub")):
            raise
        raise HubError(f"{where} cannot be reached for {repo} ({_line(error)}); try again, it goes on from there.") from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _held(folder: Path) -> int:
    """Bytes of the model's files that are there, those of unfinished ones included."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            ours = path.suffix == ".incomplete" or (".cache" not in path.relative_to(folder).parts and path.is_file())
            total += path.stat().st_size if ours else 0
        except FileNotFoundError:  # the client has just renamed it
            continue
    return total
