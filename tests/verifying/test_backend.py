"""Every graph that torch.compile makes is held against eager, forward and backward."""

import operator
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed

import dumpcmp
from dumpcmp import ExactChecker, Fp64Checker, VerifyConfig
from dumpcmp.nouns.errors import CaptureError, CheckError, VerificationWarning
from dumpcmp.pytorch.names import PrivateName
from dumpcmp.verifying import VerifyingBackend

Compiled = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def faithful(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    return graph.forward


def traced(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    compiled: Compiled = torch.jit.trace(graph, tuple(examples))  # type: ignore[no-untyped-call]
    return compiled


def adding_for_multiplying(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    """A wrong optimisation, which changes the graph that it is given."""
    for node in graph.graph.nodes:
        if node.target is operator.mul:
            node.target = operator.add
    graph.recompile()
    return graph.forward


def mutating_nothing(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    return lambda *args: graph.forward(*(arg.clone() for arg in args))


def lying_about_shape(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    return lambda *args: tuple(value[None] for value in graph.forward(*args))


def lying_about_dtype(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    return lambda *args: tuple(value.double() for value in graph.forward(*args))


def failing(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    def call(*args: Any) -> Any:
        raise RuntimeError("no such kernel")

    return call


class SevenTimesBack(torch.autograd.Function):
    """The identity, with a gradient seven times too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def wrong_backward(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
    """Right forward, wrong backward: what forward checks cannot see."""
    return lambda *args: tuple(SevenTimesBack.apply(value) for value in graph.forward(*args))  # type: ignore[no-untyped-call]


def toy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a + b


A, B = torch.linspace(-1, 1, 10), torch.linspace(0.5, 2, 10)

RIGHT = [faithful, traced, "eager", "aot_eager"]
WRONG = {
    adding_for_multiplying: (toy, "FAIL"),
    lying_about_shape: (toy, "SHAPE"),
    lying_about_dtype: (toy, "DTYPE"),
    failing: (toy, "ERROR"),
    mutating_nothing: (in_place, r"mutated\.0 \(l_a_\): FAIL"),
}


@pytest.mark.parametrize("inner", RIGHT)
def test_a_right_backend_passes_and_gives_eager_results(inner: Any) -> None:
    backend = dumpcmp.verifying_backend(inner)
    assert torch.equal(
        torch.compile(toy, backend=backend)(A.clone().requires_grad_(), B), toy(A, B)
    )
    assert isinstance(backend, VerifyingBackend)
    assert len(backend.reports) == 2  # the branch on data breaks the graph
    assert all(backend.reports)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_backend_raises_through_dynamo(wrong: Any) -> None:
    function, said = WRONG[wrong]
    compiled = torch.compile(function, backend=dumpcmp.verifying_backend(wrong, _FORWARD))
    with pytest.raises(BackendCompilerFailed, match=said) as caught:
        compiled(A.clone(), B)
    assert isinstance(caught.value, RuntimeError)


_FORWARD = VerifyConfig(value_checker=ExactChecker())


@pytest.mark.parametrize("wrong", [adding_for_multiplying, lying_about_dtype])
def test_switched_off_the_backend_is_the_inner_one_and_its_results_are_unchanged(
    wrong: Any,
) -> None:
    backend = dumpcmp.verifying_backend(wrong, VerifyConfig(enabled=False))
    assert backend is wrong
    result = torch.compile(toy, backend=backend)(A, B)
    assert result.dtype != A.dtype or not torch.equal(result, toy(A, B))


def test_the_error_names_graph_output_and_source_line() -> None:
    compiled = torch.compile(toy, backend=dumpcmp.verifying_backend(adding_for_multiplying))
    line = toy.__code__.co_firstlineno + 4
    with pytest.raises(BackendCompilerFailed) as caught:
        compiled(A, B)
    message = str(caught.value)
    for part in ("graph 1/0", "adding_for_multiplying", "output.0 (mul", f"test_backend.py:{line}"):
        assert part in message, part


def test_warn_and_record_let_the_wrong_result_through() -> None:
    right = toy(A, B)
    for on_failure in ("warn", "record"):
        torch._dynamo.reset()
        backend = dumpcmp.verifying_backend(adding_for_multiplying, on_failure=on_failure)
        compiled = torch.compile(toy, backend=backend)
        if on_failure == "warn":
            with pytest.warns(VerificationWarning, match=r"output\.0 \(\w+\): FAIL"):
                result = compiled(A, B)
        else:
            result = compiled(A, B)
        assert not torch.equal(result, right)
        assert isinstance(backend, VerifyingBackend)
        assert [report.passed for report in backend.reports] == [True, False]


def test_an_unknown_reaction_is_refused() -> None:
    with pytest.raises(CheckError, match="'ignore'"):
        dumpcmp.verifying_backend("eager", on_failure="ignore")  # type: ignore[arg-type]


def test_a_wrong_backward_is_caught() -> None:
    compiled = torch.compile(nn.Linear(3, 2), backend=dumpcmp.verifying_backend(wrong_backward))
    with pytest.raises(BackendCompilerFailed, match="grad_input"):
        compiled(torch.randn(4, 3))


def test_no_gradients_are_asked_for_where_there_are_none() -> None:
    backend = dumpcmp.verifying_backend("aot_eager")
    with torch.no_grad():
        torch.compile(nn.Linear(3, 2), backend=backend)(torch.randn(4, 3))
    (report,) = backend.reports  # type: ignore[attr-defined]
    assert [row.key.slot for row in report.rows] == ["output.0"]


def test_both_runs_draw_the_same_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    backend = dumpcmp.verifying_backend("eager")
    torch.manual_seed(3)
    state = torch.get_rng_state()
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    result = torch.compile(model, backend=backend)(x)
    torch.set_rng_state(state)
    assert torch.equal(result, model(x))  # compiling drew nothing from the user's stream


def test_a_reference_in_float64_decides_what_closeness_cannot() -> None:
    """A target that rounds like golden passes; one that is wrong by more than golden fails."""
    config = VerifyConfig(value_checker=Fp64Checker(), backward=True)
    torch.compile(toy, backend=dumpcmp.verifying_backend("aot_eager", config))(A, B)
    torch._dynamo.reset()
    wrong = dumpcmp.verifying_backend(adding_for_multiplying, reference="float64")
    with pytest.raises(BackendCompilerFailed, match="times golden's"):
        torch.compile(toy, backend=wrong)(A, B)


def test_the_inner_backend_may_run_the_graph_on_its_examples() -> None:
    seen: list[torch.Tensor] = []

    def running(graph: fx.GraphModule, examples: Sequence[Any]) -> Compiled:
        seen.extend(graph(*examples))
        return graph.forward

    def function(a: torch.Tensor, bc: tuple[torch.Tensor, torch.Tensor], d: int) -> torch.Tensor:
        b, c = bc
        return a / d - b / c

    arguments = torch.full((2,), 1.0), (torch.full((2,), 2.0), torch.full((2,), 3.0)), 4
    compiled = torch.compile(function, backend=dumpcmp.verifying_backend(running))
    assert torch.equal(compiled(*arguments), function(*arguments))
    assert torch.equal(seen[0], function(*arguments))


def test_dynamic_sizes_are_checked_as_numbers() -> None:
    backend = dumpcmp.verifying_backend("aot_eager")
    compiled = torch.compile(lambda a: (a.sin(), a.shape[0] * 2), backend=backend, dynamic=True)
    for size in (4, 8):
        assert compiled(torch.ones(size))[1] == size * 2
    assert len(backend.reports) == 1  # type: ignore[attr-defined]


LACKING: dict[str, tuple[str, Callable[[], object]]] = {
    "fallback_random": ("torch._inductor.config", lambda: dumpcmp.verify([A, B], toy, toy)),
    "tracing": ("torch._guards", lambda: dumpcmp.verifying_backend("eager")),
    "WrapperBackend": (
        "torch._dynamo.output_graph",
        lambda: dumpcmp.verify_correctness().__enter__(),
    ),
    "WrapBackendDebug": (
        "torch._dynamo.repro.after_dynamo",
        lambda: dumpcmp.explain([A, B], toy, toy),
    ),
}


@pytest.mark.parametrize("name", LACKING)
def test_a_torch_that_lacks_a_private_name_is_refused_by_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = PrivateName.find

    def find(self: PrivateName) -> Any:
        if self.path.startswith(f"{module}:{name}"):
            raise AttributeError(name)
        return there(self)

    module, call = LACKING[name]
    monkeypatch.setattr(PrivateName, "find", find)
    with pytest.raises(CaptureError, match=name):
        call()


class TestVerifyCorrectness:
    """The context manager does the same for whatever compiles inside it."""

    def test_checks_every_backend_inside_and_none_outside(self) -> None:
        wrong = torch.compile(toy, backend=adding_for_multiplying)
        with pytest.raises(BackendCompilerFailed), dumpcmp.verify_correctness():
            wrong(A, B)
        torch._dynamo.reset()
        assert not torch.equal(wrong(A, B), toy(A, B))

    def test_gives_the_reports(self) -> None:
        with dumpcmp.verify_correctness() as reports:
            torch.compile(toy, backend="aot_eager")(A, B)
        assert [report.golden for report in reports] == ["graph 0/0", "graph 1/0"]
        assert all(reports)

    def test_switched_off_changes_nothing(self) -> None:
        from torch._dynamo import config, output_graph

        ours = config.verify_correctness, output_graph.WrapperBackend
        with dumpcmp.verify_correctness(VerifyConfig(enabled=False)) as reports:
            assert (config.verify_correctness, output_graph.WrapperBackend) == ours
            torch.compile(toy, backend=adding_for_multiplying)(A, B)
        assert reports == []

    def test_leaves_dynamo_as_it_was_also_after_an_error(self) -> None:
        from torch._dynamo import config, output_graph

        before = config.verify_correctness, output_graph.WrapperBackend
        with pytest.raises(ZeroDivisionError), dumpcmp.verify_correctness():
            1 / 0  # noqa: B018
        assert (config.verify_correctness, output_graph.WrapperBackend) == before

    def test_decorates_the_tests_of_a_class_and_leaves_a_class(self) -> None:
        @dumpcmp.verify_correctness()
        class Tests(unittest.TestCase):
            def setUp(self) -> None:
                torch._dynamo.reset()

            def test_wrong(self) -> None:
                with self.assertRaises(RuntimeError):
                    torch.compile(toy, backend=adding_for_multiplying)(A, B)

            @dumpcmp.verify_correctness(VerifyConfig(enabled=False))
            def test_switched_off(self) -> None:
                torch.compile(toy, backend=adding_for_multiplying)(A, B)

            def not_a_test(self) -> None:
                torch._dynamo.reset()
                torch.compile(toy, backend=adding_for_multiplying)(A, B)

        assert issubclass(Tests, unittest.TestCase)
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(result)
        assert (result.testsRun, result.errors, result.failures) == (2, [], [])
        Tests("not_a_test").not_a_test()  # which is not checked

    def test_decorates_a_function(self) -> None:
        @dumpcmp.verify_correctness()
        def wrong() -> None:
            torch.compile(toy, backend=adding_for_multiplying)(A, B)

        with pytest.raises(BackendCompilerFailed):
            wrong()

    def test_a_backend_that_declines_leaves_the_graph_to_eager(self) -> None:
        """Also where it has spoiled the graph before."""

        def declining(graph: fx.GraphModule, examples: Sequence[Any]) -> None:
            adding_for_multiplying(graph, examples)

        with dumpcmp.verify_correctness() as reports:
            result = torch.compile(toy, backend=declining)(A, B)
        assert torch.equal(result, toy(A, B))
        assert reports == []
