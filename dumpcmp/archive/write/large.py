"""Values larger than the ring: copied straight into the part, through a mapping of the file."""

import mmap
import os

from xxhash import xxh3_128_hexdigest

from dumpcmp.archive import journal
from dumpcmp.archive.journal import seal_prefix
from dumpcmp.archive.schema import PREFIX_HEADER
from dumpcmp.archive.write.form import Form
from dumpcmp.archive.write.part import Part
from dumpcmp.nouns.record import Source


def put_large(part: Part, form: Form, source: Source, numbers: tuple[int, int, int, int]) -> None:
    """Append a value to `part` without the ring; `numbers` are call, form, row and order."""
    call, number, row, order = numbers
    start = part.end & -mmap.ALLOCATIONGRANULARITY
    lead = part.end - start
    os.posix_fallocate(part.descriptor, part.end, form.total)
    with (
        mmap.mmap(part.descriptor, lead + form.total, offset=start) as mapping,
        memoryview(mapping) as whole,
        whole[lead:] as record,
    ):
        prefix = len(form.prefix)
        wait = source.copy_into(record[prefix : prefix + form.nbytes])
        if wait is not None:
            wait()
        digest = xxh3_128_hexdigest(record[prefix : prefix + form.nbytes]).encode()
        form.write_header(record, PREFIX_HEADER, part.end + prefix, digest)
        record[:PREFIX_HEADER] = journal.header_for(
            journal.VALUE, part.nonce, form.nbytes, prefix,
            sequence=part.sequence, call=call, form=number, row=row, order=order,
        )  # fmt: skip
        seal_prefix(record[:PREFIX_HEADER], journal.VALUE, part.end)
        part.add_value(call, form, number, order, part.end, part.end + prefix, digest)
    part.end += form.total
