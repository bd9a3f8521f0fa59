"""Rows that C makes, against a driver that only writes down what it is asked to launch."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from dumpcmp.nouns.built import built
from dumpcmp.summary.gpu.kernels import DriverKernel

core: Any = built("dumpcmp.summary.gpu._rows")
compiler = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(core is None or not compiler, reason="needs a C compiler")

DRIVER = r"""
#include <string.h>
typedef unsigned long long Word;
Word told[64][16];
int count, fails;
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned a,
                   unsigned b, unsigned shared, void *stream, void **arguments, void **extra)
{
    Word *row = told[count++];
    Word first[6] = {(Word)function, x, y, threads, shared, (Word)stream};
    memcpy(row, first, sizeof first);
    for (int i = 0; i < 8; i++)
        row[6 + i] = *(Word *)arguments[i];
    return fails;
}
int steps[16], num_steps, depth, refuses;
static int note(int step) { steps[num_steps++] = step; return step == refuses ? 999 : 0; }
int cuStreamGetCtx(void *stream, void **context) { *context = (void *)5; return 0; }
int cuCtxPushCurrent_v2(void *context) { depth++; return 0; }
int cuCtxPopCurrent_v2(void **context) { depth--; return 0; }
int cuEventRecord(void *event, void *stream) { return note((Word)stream == 9 ? 1 : -1); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return note(2); }
int cuStreamSynchronize(void *stream) { return note((Word)stream == 8 ? 4 : -4); }
int cuMemcpyDtoHAsync_v2(void *host, Word address, unsigned long nbytes, void *stream)
{
    memset(host, (int)(address >> 4 & 255) + 1, nbytes);
    return note(3);
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    room = tmp_path_factory.mktemp("driver")
    (room / "driver.c").write_text(DRIVER)
    library = room / "driver.so"
    command = [str(compiler), "-shared", "-fPIC", str(room / "driver.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    assert core.open_driver(str(library))
    yield ctypes.CDLL(str(library))
    core.open_driver("libcuda.so.1")  # the real one, where there is one


class Pad(core.Slate if core else object):  # type: ignore[misc]
    """Rows on a device that is not there."""

    def __init__(self, most: int) -> None:
        self.address, self.row_nbytes, self.most, self.stream = 1 << 20, 16, most, 9
        self.num_filled = self.num_finished = self.num_arrived = 0
        self.bytes = ctypes.create_string_buffer(bytes(i % 256 for i in range(16 * most)))
        self.asked: list[int] = []

    def fetch(self, index: int) -> None:
        self.asked.append(index)
        core.under_way(self.num_arrived - self.num_filled)
        self.host, self.num_arrived = ctypes.addressof(self.bytes), self.num_filled


class Desk(core.Workbench if core else object):  # type: ignore[misc]
    """Scratch memory for two rows at a time."""

    def __init__(self, most: int = 4) -> None:
        self.sums, self.sums_nbytes = 1000, 100
        self.totals, self.totals_nbytes = 2000, 10
        self.partials, self.partials_nbytes = 3000, 1
        self.slate: Any = None
        self.num_places, self._most = 2, most
        self.finished: list[int] = []

    @property
    def batch(self) -> Pad:
        if self.slate is None or self.slate.num_filled == self._most:
            self.slate = Pad(self._most)
        pad: Pad = self.slate
        return pad

    def finish(self, pad: Pad) -> None:
        self.finished.append(pad.num_filled)
        pad.num_finished = pad.num_filled


SUM = DriverKernel(77, (8, 3, 1), 256, 40, bytes([8, 8, 8, 8, 8, 4, 0, 8, 8, 8]))
ADD = DriverKernel(78, (5, 1, 1), 128, 0, bytes([8, 8, 8, 8, 4, 4, 8, 8]))
FINISH = DriverKernel(79, (65, 1, 1), 512, 0, bytes([8] * 8))


def rows(desk: Desk, *, device: int = 0, stream: int = 9, adds: bool = False) -> Any:
    asks = (lambda: device, lambda _: stream, lambda _: desk)
    more = ((51, 52), (6, 7)) if adds else None
    return core.Rows(0, *asks, SUM, ADD if adds else None, (41, 42), (5, 1, -1), more)


def told(driver: Any) -> list[list[int]]:
    count = ctypes.c_int.in_dll(driver, "count")
    table = (ctypes.c_uint64 * 16 * 64).in_dll(driver, "told")
    found = [list(table[i])[:14] for i in range(count.value)]
    count.value = 0
    return found


def test_a_row_is_launched_with_the_arguments_that_its_kernel_takes(driver: Any) -> None:
    desk = Desk()
    make = rows(desk, adds=True)
    told(driver)
    make(4096, None)
    make(8192, None)
    first, terms, second, _ = told(driver)
    assert first[:6] == [77, 8, 3, 256, 40, 9]
    assert first[6:11] == [4096, 1000, 2000, 41, 42]
    assert first[11] & 0xFFFFFFFF == 5
    assert first[12] == 2**64 - 1  # the number before it is compiled in
    assert first[13] == 0  # scratch memory of Triton's own
    assert terms[:10] == [78, 5, 1, 128, 0, 9, 4096, 51, 52, 3000]
    assert second[6:9] == [8192, 1100, 2010]


def test_rows_are_finished_where_no_more_sums_have_room_and_where_a_batch_ends(
    driver: Any,
) -> None:
    desk = Desk(most=3)
    make = rows(desk)
    for _ in range(4):
        make(16, None)
    assert desk.finished == [2, 3]
    assert desk.batch.num_filled == 1
    told(driver)


def test_a_row_fills_its_room_and_is_fetched_once(driver: Any) -> None:
    desk = Desk()
    make = rows(desk)
    fills = [make(16, None) for _ in range(2)]
    pad = desk.batch
    for number, fill in enumerate(fills):
        room = bytearray(16)
        fill(memoryview(room))
        assert room == bytes(range(16 * number, 16 * number + 16))
    assert pad.asked == [0]
    with pytest.raises(ValueError, match="16 bytes"):
        fills[0](memoryview(bytearray(8)))
    told(driver)


def steps(driver: Any) -> list[int]:
    count = ctypes.c_int.in_dll(driver, "num_steps")
    found = list((ctypes.c_int * 16).in_dll(driver, "steps"))[: count.value]
    count.value = 0
    return found


def test_a_desk_that_was_taught_finishes_rows_by_itself_but_while_another_does(driver: Any) -> None:
    desk = Desk(most=4)
    make = rows(desk)
    desk.finish_by(FINISH, 61)
    told(driver)
    for _ in range(3):
        make(16, None)
    pad = desk.batch
    assert told(driver)[2][:11] == [79, 65, 2, 512, 0, 9, 1000, 2000, 61, pad.address, 3000]
    assert (desk.finished, pad.num_finished) == ([], 2)
    desk.is_busy = True
    make(16, None)
    assert (desk.finished, pad.num_finished) == ([4], 4)
    assert len(told(driver)) == 1


def test_rows_are_brought_by_one_call(driver: Any) -> None:
    desk = Desk(most=8)
    make = rows(desk)
    desk.finish_by(FINISH, 61)
    before = core.under_way(0)
    for _ in range(3):
        make(16, None)
    pad = desk.batch
    pad.host = ctypes.addressof(pad.bytes)
    steps(driver), told(driver)
    assert core.bring(desk, pad, 8, 7)
    finishing = told(driver)[0]
    assert (finishing[2], finishing[9]) == (1, pad.address + 32)  # the third row alone
    assert steps(driver) == [1, 2, 3, 4]
    assert (pad.num_finished, pad.num_arrived, core.under_way(0)) == (3, 3, before)
    make(16, None)
    assert core.bring(desk, pad, 8, 7)
    assert pad.bytes.raw[:48] == b"\x01" * 48
    assert pad.bytes.raw[48:64] == b"\x04" * 16  # behind those that were there
    told(driver), steps(driver)


@pytest.mark.parametrize("refused", [1, 2, 3, 4])
def test_rows_that_do_not_come_are_told(driver: Any, refused: int) -> None:
    desk = Desk()
    make = rows(desk)
    desk.finish_by(FINISH, 61)
    make(16, None)
    pad = desk.batch
    pad.host = ctypes.addressof(pad.bytes)
    refuses = ctypes.c_int.in_dll(driver, "refuses")
    refuses.value = refused
    with pytest.raises(RuntimeError, match="error 999"):
        core.bring(desk, pad, 8, 7)
    refuses.value = 0
    assert steps(driver) == [*range(1, refused + 1)]
    assert (pad.num_arrived, ctypes.c_int.in_dll(driver, "depth").value) == (0, 0)
    told(driver)


def test_rows_without_room_on_the_host_are_not_brought(driver: Any) -> None:
    desk = Desk()
    rows(desk)(16, None)
    assert not core.bring(desk, desk.batch, 8, 7)
    told(driver)


@pytest.mark.parametrize(("device", "address"), [(1, 16), (0, 8)])
def test_what_lies_elsewhere_or_oddly_is_left_to_others(
    driver: Any, device: int, address: int
) -> None:
    assert rows(Desk(), device=device)(address, None) is None
    assert not told(driver)


def test_many_rows_under_way_are_launched_without_the_interpreters_lock(driver: Any) -> None:
    desk = Desk(most=64)
    make = rows(desk)
    told(driver)
    for number in range(220):
        make(16 * (number + 1), None)
        assert told(driver)[0][6] == 16 * (number + 1)


def test_rows_are_under_way_until_they_arrive_or_nobody_wants_them(driver: Any) -> None:
    before = core.under_way(0)
    desk = Desk(most=2)
    make = rows(desk)
    fills = [make(16, None) for _ in range(3)]
    assert core.under_way(0) == before + 3
    fills[0](memoryview(bytearray(16)))
    assert core.under_way(0) == before + 1
    del desk, make, fills
    gc.collect()
    assert core.under_way(0) == before
    told(driver)


def test_an_error_of_the_driver_is_told(driver: Any) -> None:
    fails = ctypes.c_int.in_dll(driver, "fails")
    fails.value = 700
    desk = Desk()
    with pytest.raises(RuntimeError, match="error 700"):
        rows(desk)(16, None)
    assert desk.batch.num_filled == 0
    fails.value = 0
    told(driver)


def test_a_kernel_with_other_arguments_is_refused() -> None:
    fewer = SUM._replace(widths=bytes([8] * 6))
    asks = (lambda: 0, lambda _: 9, lambda _: Desk())
    with pytest.raises(ValueError, match="other arguments"):
        core.Rows(0, *asks, fewer, None, (41, 42), (5, 1, -1), None)
