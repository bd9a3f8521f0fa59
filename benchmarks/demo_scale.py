"""``make demo-scale``: the demo in a bucket: an S3 server, two Dask workers, the same verdict.

The server is moto's; where that is not installed, the one of the tests.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import click
from distributed import LocalCluster

from dumpcmp.archive.copies import SPOOL
from dumpcmp.cli.compare import report
from dumpcmp.comparing import compare
from dumpcmp.demo import build, generate
from dumpcmp.dumping.capturing import capture
from dumpcmp.faults import Fault, on_output, planted, scale
from dumpcmp.report.terminal import Screen
from tests.archive.bucket import NAME, bucket_served

FAULT = Fault("scaled by 1.01", "layers.1.mlp.down_proj", "linear", on_output(scale))
BUCKET = "dumps"
_KEYS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_REGION": "us-east-1"}


def dump_both(place: str) -> tuple[str, str]:
    """Dump the demo, and once more with a planted fault."""
    golden, mine = f"{place}/golden", f"{place}/mine"
    model = build()[0]
    with capture(model, golden, overwrite=True):
        generate(model)
    with planted(model, FAULT), capture(model, mine, overwrite=True):
        generate(model)
    return golden, mine


@contextmanager
def served() -> Iterator[str]:
    """The URL of a bucket, where workers find what is dumped."""
    if not find_spec("moto"):
        with bucket_served() as (_, variables):
            os.environ |= variables
            yield f"s3://{NAME}"
        return
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        os.environ |= {**_KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        s3fs.S3FileSystem().mkdir(BUCKET)
        yield f"s3://{BUCKET}"
    finally:
        server.stop()


def main(output: Path) -> int:
    """Compare in the bucket by two workers; 0 where the verdict is that of one process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[SPOOL] = folder
        alone = compare(*dump_both(f"{folder}/alone"))
        with (
            served() as place,
            LocalCluster(
                2, threads_per_worker=1, dashboard_address=None, silence_logs=50
            ) as cluster,
        ):
            engine = f"dask:{cluster.scheduler_address}"
            golden, mine = dump_both(place)
            click.echo(
                f"dumpcmp compare --my-path {mine} --golden-path {golden} --executor {engine}\n"
            )
            outcome = compare(golden, mine, executor=engine)
            report(outcome, output, ("csv",), Screen())
    first, verdicts = outcome.first_divergence, [row.verdict for row in outcome.rows]
    same = outcome.word == alone.word and verdicts == [row.verdict for row in alone.rows]
    same = same and first is not None and first.key.op == FAULT.op
    said = "the same verdict as of" if same else "NOT the verdict of"
    click.echo(f"\nTwo workers came to {said} one process that reads a directory.")
    return 0 if same else 2


if __name__ == "__main__":
    sys.exit(main(Path("demo_out")))
