"""Everything that ends a command without a verdict: one sentence on stderr, and exit code 2."""

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.report.escaping import visible

NO_VERDICT = 2
TRACEBACK = "DUMPCMP_TRACEBACK"  # set in the environment, it shows where an error came from

_PRINTERS = {__name__, "click.utils", "rich.console", "dumpcmp.report.terminal"}
_HELP = getattr(click.exceptions, "NoArgsIsHelpError", click.exceptions.Exit)  # since click 8.2
_ROOM = "make room there, or choose another place"
_FILES = "raise the limit with `ulimit -n 4096`, or use fewer --jobs"
_ALLOWED = "choose another place, or ask for the right to use this one"
_NEXT = {
    errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EFBIG: _ROOM,
    errno.EMFILE: _FILES, errno.ENFILE: _FILES,
    errno.EACCES: _ALLOWED, errno.EPERM: _ALLOWED, errno.EROFS: _ALLOWED,
    errno.EPIPE: "have the reader take all of it, or send it into a file",
}  # fmt: skip


@contextmanager
def told() -> Iterator[None]:
    """Let whatever goes wrong inside end this process with one sentence and exit code 2."""
    owner = os.getpid()
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be printed fails here, and not when Python ends
    except (click.exceptions.Exit, _HELP):
        raise  # click says these itself, with the codes that they have
    except BaseException as error:
        if os.getpid() != owner:
            raise  # a child that the program forked ends as it would without us
        with suppress(OSError):  # of a stderr that nobody reads
            _give_up_stdout()
            _tell(error)
        sys.exit(NO_VERDICT)


def _give_up_stdout() -> None:
    """Print what stdout still holds; where that fails, see that Python does not try it again."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _tell(error: BaseException) -> None:
    if TRACEBACK in os.environ:
        traceback.print_exception(error)
    click.echo("dumpcmp: " + visible(str(explained(error)), keep="\n"), err=True)


def explained(error: BaseException) -> DumpcmpError:
    """What is wrong and where, and what to do next."""
    error = _first_cause(error)
    match error:
        case DumpcmpError():
            return error
        case click.UsageError(ctx=click.Context() as ctx):
            usage = " ".join(ctx.command.collect_usage_pieces(ctx))
            hint = f"usage: {ctx.command_path} {usage}; --help says more"
            return DumpcmpError(error.format_message(), hint=hint)
        case click.ClickException():
            return DumpcmpError(error.format_message())
        case KeyboardInterrupt() | click.Abort():
            return DumpcmpError("interrupted, so there is no verdict")
        case SystemExit(code=code):
            return DumpcmpError(f"the code that was run exited with {code}: there is no verdict")
        case MemoryError():
            hint = "take less at a time: --layer, --token, fewer --jobs"
            return DumpcmpError(f"not enough memory: {_first_line(error)}", hint=hint)
        case BrokenExecutor():
            hint = "use fewer --jobs; the system kills processes where memory runs out"
            return DumpcmpError("a process of --jobs ended before its work was done", hint=hint)
        case OSError(errno=int(number), strerror=problem):
            place = error.filename or _place(error)
            return DumpcmpError(f"{place}: {problem}", hint=_NEXT.get(number, ""))
    hint = f"if your own code is not the cause, please report what {TRACEBACK}=1 shows"
    kind, where = type(error).__name__, _where(error)
    return DumpcmpError(f"unexpected {kind} at {where}: {_first_line(error)}", hint=hint)


def _first_cause(error: BaseException) -> BaseException:
    """The interrupt behind whatever else broke while it was heeded; else the error itself."""
    before: BaseException | None = error
    while before is not None:
        if isinstance(before, KeyboardInterrupt):
            return before
        before = before.__context__
    return error


def _first_line(error: BaseException) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), "no details")


def _place(error: OSError) -> str:
    """What an error is about that names no file: what prints writes to standard output."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return "standard output" if frame.f_globals["__name__"] in _PRINTERS else _where(error)


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
