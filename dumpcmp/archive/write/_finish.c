/* Finishes the records of a run in the ring: what finishing.py does of each one, in one call of C.

   A record in the ring lacks what depends on its place in the file: address, checksum, and the
   object header of a value. Its part takes a row of the index; links of groups are made of those.
   The interpreter's lock is held, but where a copy is waited for or many bytes are digested. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define PREFIX_HEADER 64
#define CRC_AT 4
#define CRC_FROM 8
#define ADDRESS_AT 24
#define ROW_NBYTES 80
#define DIGEST_NBYTES 32
#define NO_ROW 0xFFFFFFFFu /* and as a call: the value was lost */
#define MAGIC "dcR1"
#define LINK_COUNT_AT 4     /* of an object header, as encoder.py has them */
#define DATASET_ADDRESS 26

enum { CALL = 2, FORM = 3, VALUE = 4, LINK = 5 };

/* Where the columns of a row lie, as schema.py has them. */
enum { ROW_CALL = 0, ROW_FORM = 4, ROW_ORDER = 8, ROW_PART = 16, ROW_SAME = 20, ROW_HEADER = 24,
       ROW_OFFSET = 32, ROW_NUM = 40, ROW_DIGEST = 48 };

static struct {
    PyObject *stamp, *links, *num_links, *told, *forms, *rows, *number, *end, *popleft, *nothing;
} names;

static uint32_t tables[8][256];

static void make_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        tables[0][i] = crc;
    }
    for (int i = 1; i < 8; i++)
        for (int j = 0; j < 256; j++)
            tables[i][j] = tables[i - 1][j] >> 8 ^ tables[0][tables[i - 1][j] & 255];
}

/* zlib's CRC-32. */
static uint32_t crc32_of(const unsigned char *at, size_t nbytes)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; nbytes >= 8; nbytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][high & 255] ^ tables[2][high >> 8 & 255] ^
              tables[1][high >> 16 & 255] ^ tables[0][high >> 24];
    }
    for (; nbytes; nbytes--, at++)
        crc = crc >> 8 ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}

typedef struct {
    PyObject *part, *rows, *told; /* rows: a bytearray */
    PyObject *undigested, *digest, *add_link;
    PyObject *known, *step; /* digests that came before, NULL: nobody asks; and the part's step */
    Py_ssize_t least;       /* bytes of a record that is looked for among them */
    int is_first;           /* weights will come again */
    PyObject *found;        /* the digest of a value that came before or lasts, owned */
    Py_buffer room;
    uint64_t end;    /* of the part */
    uint32_t number; /* of the part */
} Run;

static void put4(char *at, uint32_t number) { memcpy(at, &number, 4); }
static void put8(char *at, uint64_t number) { memcpy(at, &number, 8); }

/* `nbytes` more of a bytearray; NULL with an exception. */
static char *grow(PyObject *octets, Py_ssize_t nbytes)
{
    Py_ssize_t size = PyByteArray_Size(octets);
    return PyByteArray_Resize(octets, size + nbytes) < 0 ? NULL : PyByteArray_AsString(octets) + size;
}

/* What all values of a form have in common, see Template.stamp. */
typedef struct {
    uint64_t prefix_nbytes, nbytes;
    char *header, *link;
    Py_ssize_t header_nbytes, link_nbytes, address_at, digest_at, order_at, target_at;
    int is_weight;
    PyObject *told; /* owns the bytes */
} Stamp;

static int read_stamp(PyObject *form, Stamp *stamp)
{
    stamp->told = PyObject_GetAttr(form, names.stamp);
    unsigned long long prefix_nbytes, nbytes;
    if (!stamp->told || !PyArg_ParseTuple(stamp->told, "KKy#nny#nnp", &prefix_nbytes, &nbytes,
                                          &stamp->header, &stamp->header_nbytes,
                                          &stamp->address_at, &stamp->digest_at, &stamp->link,
                                          &stamp->link_nbytes, &stamp->order_at,
                                          &stamp->target_at, &stamp->is_weight))
        return -1;
    stamp->prefix_nbytes = prefix_nbytes;
    stamp->nbytes = nbytes;
    if (stamp->prefix_nbytes != PREFIX_HEADER + (uint64_t)stamp->header_nbytes ||
        stamp->address_at + 8 > stamp->header_nbytes ||
        stamp->digest_at + DIGEST_NBYTES > stamp->header_nbytes ||
        stamp->order_at + 8 > stamp->link_nbytes || stamp->target_at + 8 > stamp->link_nbytes) {
        PyErr_SetString(PyExc_ValueError, "finish: no stamp of a form");
        return -1;
    }
    return 0;
}

/* The digest of the bytes, as it was given, or else found now. */
static int read_digest(Run *run, PyObject *given, char *from, uint64_t nbytes, char *to)
{
    PyObject *text = PyObject_IsTrue(given) > 0 ? Py_NewRef(given) : NULL;
    if (!text && !PyErr_Occurred()) {
        PyObject *view = PyMemoryView_FromMemory(from, (Py_ssize_t)nbytes, PyBUF_READ);
        text = view ? PyObject_CallFunctionObjArgs(run->digest, view, NULL) : NULL;
        Py_XDECREF(view);
    }
    Py_ssize_t length = 0;
    const char *digits = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    int done = digits && length == DIGEST_NBYTES ? 0 : -1;
    if (done == 0)
        memcpy(to, digits, DIGEST_NBYTES);
    else if (digits)
        PyErr_SetString(PyExc_ValueError, "finish: no digest");
    Py_XDECREF(text);
    return done;
}

/* The address and the checksum of a record, of which so many bytes are checked. */
static void seal_prefix(Run *run, char *record, Py_ssize_t checked)
{
    put8(record + ADDRESS_AT, run->end);
    put4(record + CRC_AT,
         crc32_of((unsigned char *)record + CRC_FROM, (size_t)(checked - CRC_FROM)));
}

static int receive(PyObject *wait, char *record)
{
    if (wait == Py_None)
        return 0;
    PyObject *done = PyObject_CallNoArgs(wait);
    Py_XDECREF(done);
    if (done)
        memcpy(record, MAGIC, 4);
    return done ? 0 : -1;
}

static int add_row(Run *run, const char *row)
{
    char *to = grow(run->rows, ROW_NBYTES);
    if (to)
        memcpy(to, row, ROW_NBYTES);
    return to ? 0 : -1;
}

/* Whether the bytes of this digest came in another step before, or last; keeps others in mind. */
static int comes_again(Run *run, const char *digits, int lasts)
{
    PyObject *text = PyUnicode_FromStringAndSize(digits, DIGEST_NBYTES);
    PyObject *before = text && !lasts ? PyDict_GetItemWithError(run->known, text) : NULL;
    int again = -1;
    if (text && lasts)
        again = 1;
    else if (before)
        again = PyObject_RichCompareBool(before, run->step, Py_NE);
    else if (text && !PyErr_Occurred())
        again = PyDict_SetItem(run->known, text, run->step);
    if (again > 0)
        run->found = Py_NewRef(text);
    Py_XDECREF(text);
    return again;
}

/* (VALUE, part, place, total, call, form, number, order, wait, digest); 1: it came before, or lasts. */
static int finish_value(Run *run, PyObject *entry, char *record, Py_ssize_t total)
{
    Py_ssize_t place, laid;
    int kind;
    unsigned long long call, number, order;
    PyObject *part, *form, *wait, *given;
    Stamp stamp;
    char row[ROW_NBYTES];
    stamp.told = NULL;
    int done = -1;
    if (!PyArg_ParseTuple(entry, "iOnnKOKKOO", &kind, &part, &place, &laid, &call, &form, &number,
                          &order, &wait, &given) ||
        receive(wait, record) < 0 || read_stamp(form, &stamp) < 0)
        goto end;
    if (stamp.prefix_nbytes + stamp.nbytes > (uint64_t)total) {
        PyErr_SetString(PyExc_ValueError, "finish: a value larger than its record");
        goto end;
    }
    if (read_digest(run, given, record + stamp.prefix_nbytes, stamp.nbytes, row + ROW_DIGEST) < 0)
        goto end;
    if (run->known && total > run->least &&
        (done = comes_again(run, row + ROW_DIGEST, run->is_first && stamp.is_weight)) != 0)
        goto end;
    done = -1;
    uint64_t offset = run->end + stamp.prefix_nbytes, header = run->end + PREFIX_HEADER;
    char *to = record + PREFIX_HEADER;
    memcpy(to, stamp.header, (size_t)stamp.header_nbytes);
    put8(to + stamp.address_at, stamp.nbytes ? offset : UINT64_MAX);
    memcpy(to + stamp.digest_at, row + ROW_DIGEST, DIGEST_NBYTES);
    seal_prefix(run, record, PREFIX_HEADER);
    put4(row + ROW_CALL, (uint32_t)call);
    put4(row + ROW_FORM, (uint32_t)number);
    put8(row + ROW_ORDER, order);
    put4(row + ROW_PART, run->number);
    put4(row + ROW_SAME, NO_ROW);
    put8(row + ROW_HEADER, header);
    put8(row + ROW_OFFSET, stamp.nbytes ? offset : 0);
    put8(row + ROW_NUM, stamp.nbytes);
    done = add_row(run, row);
end:
    Py_XDECREF(stamp.told);
    return done;
}

/* (LINK, part, place, total, (call, form, number, order), holder, row, first) */
static int finish_link(Run *run, PyObject *entry)
{
    PyObject *owner = PyTuple_GetItem(entry, 4), *holder = PyTuple_GetItem(entry, 5),
             *row = PyTuple_GetItem(entry, 6), *first = PyTuple_GetItem(entry, 7);
    if (!owner || !holder || !row || !first)
        return -1;
    unsigned long long call, number, order, target = PyLong_AsUnsignedLongLong(row);
    uint64_t num_rows = (uint64_t)PyByteArray_Size(run->rows) / ROW_NBYTES;
    PyObject *form;
    if (PyErr_Occurred() || !PyArg_ParseTuple(owner, "KOKK", &call, &form, &number, &order))
        return -1;
    char own[ROW_NBYTES];
    uint32_t held_by = 0, in_part = 0;
    int is_here = holder == run->part && target < num_rows && !PyDict_Size(run->undigested);
    if (is_here) {
        memcpy(own, PyByteArray_AsString(run->rows) + target * ROW_NBYTES, ROW_NBYTES);
        memcpy(&held_by, own + ROW_CALL, 4);
        memcpy(&in_part, own + ROW_PART, 4);
    }
    if (!is_here || held_by == NO_ROW || in_part != run->number) {
        PyObject *done = PyObject_CallFunctionObjArgs(run->add_link, run->part, owner, holder, row,
                                                      first, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    put4(own + ROW_CALL, (uint32_t)call);
    put4(own + ROW_FORM, (uint32_t)number);
    put8(own + ROW_ORDER, order);
    put4(own + ROW_SAME, (uint32_t)target);
    return add_row(run, own);
}

/* Give a record that is all text its address and checksum, and its part what it says. */
static int finish_text(Run *run, PyObject *entry, long kind, char *record, Py_ssize_t total)
{
    seal_prefix(run, record, total);
    if (kind == LINK)
        return finish_link(run, entry);
    int added = -1;
    if (kind == FORM) {
        PyObject *form = PyTuple_GetItem(entry, 4);
        PyObject *forms = form ? PyObject_GetAttr(run->part, names.forms) : NULL;
        added = forms ? PyList_Append(forms, form) : -1;
        Py_XDECREF(forms);
        return added;
    }
    PyObject *told = PyTuple_GetSlice(entry, 4, 6);
    added = told ? PyList_Append(run->told, told) : -1;
    Py_XDECREF(told);
    return added;
}

/* What of `pending` comes next, a new reference; NULL where there is nothing. */
static PyObject *next_of(PyObject *pending)
{
    Py_ssize_t count = PySequence_Size(pending);
    return count > 0 ? PySequence_GetItem(pending, 0) : NULL;
}

static int take_next(PyObject *pending)
{
    PyObject *taken = PyObject_CallMethodObjArgs(pending, names.popleft, NULL);
    Py_XDECREF(taken);
    return taken ? 0 : -1;
}

/* Finish what is pending of the part in one piece: (start, stop, count, a value or None, digest).
   The value, which lies behind the piece, is large, or came before, or lasts; then its digest is
   told. */
static PyObject *finish_all(Run *run, PyObject *pending, Py_ssize_t most, Py_ssize_t large)
{
    Py_ssize_t start = -1, stop = 0, count = 0;
    PyObject *entry, *last = NULL;
    while ((entry = next_of(pending))) {
        if (!PyTuple_Check(entry) || PyTuple_Size(entry) < 4) {
            PyErr_SetString(PyExc_TypeError, "finish: no record");
            goto fail;
        }
        long kind = PyLong_AsLong(PyTuple_GetItem(entry, 0));
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GetItem(entry, 2));
        Py_ssize_t total = PyLong_AsSsize_t(PyTuple_GetItem(entry, 3));
        if (PyErr_Occurred())
            goto fail;
        if (start < 0)
            start = stop = place;
        int is_kind = kind == CALL || kind == FORM || kind == VALUE || kind == LINK;
        int is_large = kind == VALUE && total > large;
        if (PyTuple_GetItem(entry, 1) != run->part || place != stop || !is_kind ||
            (!is_large && count && stop + total - start > most)) {
            Py_DECREF(entry);
            break;
        }
        if (total < PREFIX_HEADER || place < 0 || place > run->room.len - total) {
            PyErr_SetString(PyExc_ValueError, "finish: a record outside of the ring");
            goto fail;
        }
        if (take_next(pending) < 0)
            goto fail;
        if (is_large) {
            last = entry;
            break;
        }
        char *record = (char *)run->room.buf + place;
        int done = kind == VALUE ? finish_value(run, entry, record, total)
                                 : finish_text(run, entry, kind, record, total);
        if (done < 0)
            goto fail;
        if (done > 0) {
            last = entry;
            break;
        }
        Py_DECREF(entry);
        run->end += (uint64_t)total;
        stop += total;
        count++;
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = Py_BuildValue("(nnnOO)", start, stop, count, last ? last : Py_None,
                                    run->found ? run->found : names.nothing);
    Py_XDECREF(last);
    return found;
fail:
    Py_DECREF(entry);
    return NULL;
}

static int read_part(Run *run)
{
    PyObject *end = PyObject_GetAttr(run->part, names.end);
    PyObject *number = end ? PyObject_GetAttr(run->part, names.number) : NULL;
    run->end = end ? PyLong_AsUnsignedLongLong(end) : 0;
    run->number = number ? (uint32_t)PyLong_AsUnsignedLong(number) : 0;
    Py_XDECREF(end);
    Py_XDECREF(number);
    run->rows = PyObject_GetAttr(run->part, names.rows);
    run->told = PyObject_GetAttr(run->part, names.told);
    if (PyErr_Occurred())
        return -1;
    if (!PyByteArray_Check(run->rows) || !PyList_Check(run->told) ||
        !PyDict_Check(run->undigested)) {
        PyErr_SetString(PyExc_TypeError, "finish: no part");
        return -1;
    }
    return 0;
}

/* Finish the records of (pending, part, room, most, large, undigested, digest, add_link, sight); the
   last is None or (the digests that came before, the least bytes of a record among them, the step,
   whether weights last). */
static PyObject *finish(PyObject *self, PyObject *args)
{
    (void)self;
    Run run;
    memset(&run, 0, sizeof run);
    PyObject *pending, *sight = Py_None, *found = NULL;
    Py_ssize_t most, large;
    if (!PyArg_ParseTuple(args, "OOw*nnOOO|O", &pending, &run.part, &run.room, &most, &large,
                          &run.undigested, &run.digest, &run.add_link, &sight))
        return NULL;
    int is_sound = sight == Py_None || PyArg_ParseTuple(sight, "O!nOp", &PyDict_Type,
                                                        &run.known, &run.least, &run.step,
                                                        &run.is_first);
    if (is_sound && read_part(&run) == 0)
        found = finish_all(&run, pending, most, large);
    PyObject *end = found ? PyLong_FromUnsignedLongLong(run.end) : NULL;
    if (found && (!end || PyObject_SetAttr(run.part, names.end, end) < 0))
        Py_CLEAR(found);
    Py_XDECREF(end);
    Py_XDECREF(run.rows);
    Py_XDECREF(run.told);
    Py_XDECREF(run.found);
    PyBuffer_Release(&run.room);
    return found;
}

/* Have the group of a call link to a header of this part. */
static int link_to(PyObject *group, const Stamp *stamp, uint64_t header)
{
    PyObject *links = PyObject_GetAttr(group, names.links);
    PyObject *count = links ? PyObject_GetAttr(group, names.num_links) : NULL;
    uint64_t place = count ? PyLong_AsUnsignedLongLong(count) : 0;
    PyObject *next = count ? PyLong_FromUnsignedLongLong(place + 1) : NULL;
    char *to = next && PyByteArray_Check(links) ? grow(links, stamp->link_nbytes) : NULL;
    int done = -1;
    if (to && PyObject_SetAttr(group, names.num_links, next) == 0) {
        memcpy(to, stamp->link, (size_t)stamp->link_nbytes);
        put8(to + stamp->order_at, place);
        put8(to + stamp->target_at, header);
        done = 0;
    }
    Py_XDECREF(links);
    Py_XDECREF(count);
    Py_XDECREF(next);
    return done;
}

typedef struct {
    PyObject *rows, *forms, *outside, *groups, *dirty, *touch, *link_outside;
} Links;

/* Have the group of the call of one row link to its value. */
static int link_row(const Links *all, Py_ssize_t number)
{
    uint32_t call, form_number;
    uint64_t header;
    const char *row = PyByteArray_AsString(all->rows) + number * ROW_NBYTES;
    memcpy(&call, row + ROW_CALL, 4);
    memcpy(&form_number, row + ROW_FORM, 4);
    memcpy(&header, row + ROW_HEADER, 8);
    if (call == NO_ROW)
        return 0;
    PyObject *group = PyList_GetItem(all->groups, call);
    PyObject *form = group ? PyList_GetItem(all->forms, form_number) : NULL;
    PyObject *key = form && PyDict_Size(all->outside) ? PyLong_FromSsize_t(number) : NULL;
    PyObject *place = key ? PyDict_GetItemWithError(all->outside, key) : NULL, *done = NULL;
    Stamp stamp;
    stamp.told = NULL;
    Py_XDECREF(key);
    if (!form || PyErr_Occurred())
        return -1;
    if (place)
        done = PyObject_CallFunctionObjArgs(all->link_outside, group, form, place, NULL);
    else if (read_stamp(form, &stamp) == 0 && link_to(group, &stamp, header) == 0)
        done = Py_NewRef(Py_None);
    Py_XDECREF(stamp.told);
    Py_XDECREF(done);
    if (!done || PySet_Contains(all->dirty, group) > 0)
        return done ? 0 : -1;
    done = PyObject_CallFunctionObjArgs(all->touch, group, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Make the links of (first row, rows, forms, outside, groups of calls, dirty, touch, way to link to
   another part). */
static PyObject *link_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Links all;
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "nO!O!O!O!O!OO", &first, &PyByteArray_Type, &all.rows,
                          &PyList_Type, &all.forms, &PyDict_Type, &all.outside, &PyList_Type,
                          &all.groups, &PySet_Type, &all.dirty, &all.touch, &all.link_outside))
        return NULL;
    for (; first < PyByteArray_Size(all.rows) / ROW_NBYTES; first++)
        if (link_row(&all, first) < 0)
            return NULL;
    Py_RETURN_NONE;
}

/* What lay_values is given, as memory. */
enum { BLOCK, FILE_ROOM, PLACES, OFFSETS, ROWS, COUNTS, NUM_ROOMS };

typedef struct {
    const char *octets;
    Py_ssize_t nbytes;
} Header;

typedef struct {
    Py_buffer rooms[NUM_ROOMS];
    uint64_t start; /* of the block in the new part */
    Header *headers;
    Py_ssize_t num_headers;
} Values;

/* Put the value of one row where its addresses say; -1 where they lead out of any room. */
static int lay_one(const Values *all, uint64_t place)
{
    const Py_buffer *rooms = all->rooms;
    uint32_t form;
    uint64_t header, offset, nbytes, from;
    if (place >= (uint64_t)rooms[ROWS].len / ROW_NBYTES || place >= (uint64_t)rooms[OFFSETS].len / 8 ||
        place >= (uint64_t)rooms[COUNTS].len / 4)
        return -1;
    const char *row = (const char *)rooms[ROWS].buf + place * ROW_NBYTES;
    memcpy(&form, row + ROW_FORM, 4);
    memcpy(&header, row + ROW_HEADER, 8);
    memcpy(&offset, row + ROW_OFFSET, 8);
    memcpy(&nbytes, row + ROW_NUM, 8);
    memcpy(&from, (const char *)rooms[OFFSETS].buf + 8 * place, 8);
    if (form >= (uint64_t)all->num_headers || header < all->start)
        return -1;
    const Header *own = &all->headers[form];
    uint64_t at = header - all->start, room = (uint64_t)rooms[BLOCK].len;
    if (at > room || nbytes > room - at || (uint64_t)own->nbytes > room - at - nbytes ||
        (nbytes && (from > (uint64_t)rooms[FILE_ROOM].len ||
                    nbytes > (uint64_t)rooms[FILE_ROOM].len - from)))
        return -1;
    char *to = (char *)rooms[BLOCK].buf + at;
    memcpy(to, own->octets, (size_t)own->nbytes);
    memcpy(to + LINK_COUNT_AT, (const char *)rooms[COUNTS].buf + 4 * place, 4);
    if (nbytes) {
        put8(to + DATASET_ADDRESS, offset);
        memcpy(to + own->nbytes, (const char *)rooms[FILE_ROOM].buf + from, (size_t)nbytes);
    }
    return 0;
}

static int lay_each(const Values *all)
{
    int done = 0;
    Py_ssize_t count = all->rooms[PLACES].len / 8;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && !done; i++) {
        uint64_t place;
        memcpy(&place, (const char *)all->rooms[PLACES].buf + 8 * i, 8);
        done = lay_one(all, place);
    }
    Py_END_ALLOW_THREADS
    if (done)
        PyErr_SetString(PyExc_ValueError, "lay_values: a value outside of its part");
    return done;
}

static int read_headers(Values *all, PyObject *headers)
{
    all->num_headers = PyList_Size(headers);
    all->headers = PyMem_Calloc((size_t)all->num_headers + 1, sizeof *all->headers);
    if (!all->headers) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < all->num_headers; i++) {
        char *octets;
        Header *header = &all->headers[i];
        if (PyBytes_AsStringAndSize(PyList_GetItem(headers, i), &octets, &header->nbytes) < 0)
            return -1;
        header->octets = octets;
        if (header->nbytes < DATASET_ADDRESS + 8) {
            PyErr_SetString(PyExc_ValueError, "lay_values: no header");
            return -1;
        }
    }
    return 0;
}

/* Lay values into (block, its address, bytes of the old part, places, old offsets, rows, hard links
   to each, headers of the forms). Other threads run meanwhile. */
static PyObject *lay_values(PyObject *self, PyObject *args)
{
    (void)self;
    Values all;
    memset(&all, 0, sizeof all);
    PyObject *headers;
    unsigned long long start;
    Py_buffer *rooms = all.rooms;
    if (!PyArg_ParseTuple(args, "w*Ky*y*y*y*y*O!", &rooms[BLOCK], &start, &rooms[FILE_ROOM],
                          &rooms[PLACES], &rooms[OFFSETS], &rooms[ROWS], &rooms[COUNTS],
                          &PyList_Type, &headers))
        return NULL;
    all.start = start;
    int done = read_headers(&all, headers) < 0 ? -1 : lay_each(&all);
    PyMem_Free(all.headers);
    for (int i = 0; i < NUM_ROOMS; i++)
        PyBuffer_Release(&rooms[i]);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"lay_values", lay_values, METH_VARARGS, "Lay values of a part out anew."},
    {"link_rows", link_rows, METH_VARARGS, "Make the links of rows in the groups of their calls."},
    {"finish", finish, METH_VARARGS, "Finish the records of a part that lie in one piece."},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *made)
{
    (void)made;
    static const char *const words[] = {
        "stamp", "links", "num_links", "told", "forms", "rows", "number", "end", "popleft", "",
    };
    PyObject **fields = (PyObject **)&names;
    _Static_assert(sizeof words / sizeof *words == sizeof names / sizeof(PyObject *), "one each");
    const uint16_t one = 1;
    if (*(const char *)&one != 1) {
        PyErr_SetString(PyExc_ImportError, "parts are little-endian, and this machine is not");
        return -1;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!(fields[i] = PyUnicode_InternFromString(words[i])))
            return -1;
    make_tables();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_finish", "Records of the ring, finished.", 0, methods, slots, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__finish(void) { return PyModuleDef_Init(&module); }
