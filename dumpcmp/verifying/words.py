"""tt-forge's words for the arguments of verify(), which its tests are written in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from dumpcmp.nouns.errors import CheckError, NotCallableError
from dumpcmp.verifying.config import VerifyConfig, given
from dumpcmp.verifying.model_files import callable_of

Runnable = Callable[..., Any]
Verifiable = Runnable | str | PathLike[str]  # a path names a model in a file


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call of verify asks for, in whichever words."""

    golden: Runnable
    target: Runnable
    config: VerifyConfig


def asked(
    golden: Verifiable | None,
    target: Verifiable | None,
    config: VerifyConfig | None,
    with_backward: bool,
    framework_model: Verifiable | None,
    compiled_model: Verifiable | None,
    verify_cfg: VerifyConfig | None,
) -> Wanted:
    """The two models and the config: each said once, in our words or in tt-forge's."""
    ours = _one("golden", golden, "framework_model", framework_model)
    theirs = _one("target", target, "compiled_model", compiled_model)
    for word, model in (("golden", ours), ("target", theirs)):
        if model is None:
            raise NotCallableError(f"no {word} is given", hint="verify(inputs, golden, target)")
    config = given(_one("config", config, "verify_cfg", verify_cfg)) or VerifyConfig()
    config = replace(config, backward=True) if with_backward else config
    return Wanted(callable_of(ours), callable_of(theirs), config)


def _one(word: str, value: Any, other: str, again: Any) -> Any:
    """What was said by either of two words."""
    if value is not None and again is not None:
        raise CheckError(
            f"{word} and {other} are two words for one thing, and both are given",
            hint=f"leave {other} out",
        )
    return again if value is None else value
