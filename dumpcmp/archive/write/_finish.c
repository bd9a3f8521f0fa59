/* Finishes the records of a run in the ring: what finishing.py does of each one, in one call of C.

   A record in the ring lacks what depends on its place in the file: address, checksum, and the
   object header of a value. Its part takes a row of the index and a link in the group of its call.
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

enum { CALL = 2, FORM = 3, VALUE = 4, LINK = 5 };

/* Where the columns of a row lie, as schema.py has them. */
enum { ROW_CALL = 0, ROW_FORM = 4, ROW_ORDER = 8, ROW_PART = 16, ROW_SAME = 20, ROW_HEADER = 24,
       ROW_OFFSET = 32, ROW_NUM = 40, ROW_DIGEST = 48 };

static struct {
    PyObject *stamp, *links, *num_links, *touch, *add_call, *forms, *rows, *call_groups, *dirty,
        *num_links_to, *number, *end, *popleft;
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
    PyObject *part, *rows, *groups, *dirty, *num_links_to; /* rows: a bytearray */
    PyObject *undigested, *digest, *add_link;
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
    PyObject *told; /* owns the bytes */
} Stamp;

static int read_stamp(PyObject *form, Stamp *stamp)
{
    stamp->told = PyObject_GetAttr(form, names.stamp);
    unsigned long long prefix_nbytes, nbytes;
    if (!stamp->told || !PyArg_ParseTuple(stamp->told, "KKy#nny#nn", &prefix_nbytes, &nbytes,
                                          &stamp->header, &stamp->header_nbytes,
                                          &stamp->address_at, &stamp->digest_at, &stamp->link,
                                          &stamp->link_nbytes, &stamp->order_at,
                                          &stamp->target_at))
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

/* Have the group of a call link to a header of this part; tells the part that the group changed. */
static int link_to(Run *run, uint64_t call, const Stamp *stamp, uint64_t header)
{
    PyObject *group = PyList_GetItem(run->groups, (Py_ssize_t)call);
    if (!group)
        return -1;
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
    if (done < 0 || PySet_Contains(run->dirty, group) > 0)
        return done;
    PyObject *touched = PyObject_CallMethodObjArgs(run->part, names.touch, group, NULL);
    Py_XDECREF(touched);
    return touched ? 0 : -1;
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

/* (VALUE, part, place, total, call, form, number, order, wait, digest) */
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
    done = link_to(run, call, &stamp, header) < 0 ? -1 : add_row(run, row);
end:
    Py_XDECREF(stamp.told);
    return done;
}

/* Count one link more to `row`. */
static int count_link(Run *run, PyObject *row)
{
    PyObject *before = PyDict_GetItemWithError(run->num_links_to, row);
    if (!before && PyErr_Occurred())
        return -1;
    PyObject *count = PyLong_FromLongLong((before ? PyLong_AsLongLong(before) : 0) + 1);
    int done = count ? PyDict_SetItem(run->num_links_to, row, count) : -1;
    Py_XDECREF(count);
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
    Stamp stamp;
    uint64_t header;
    memcpy(&header, own + ROW_HEADER, 8);
    int done = read_stamp(form, &stamp);
    if (!done)
        done = link_to(run, call, &stamp, header);
    Py_XDECREF(stamp.told);
    put4(own + ROW_CALL, (uint32_t)call);
    put4(own + ROW_FORM, (uint32_t)number);
    put8(own + ROW_ORDER, order);
    put4(own + ROW_SAME, (uint32_t)target);
    return done < 0 || count_link(run, row) < 0 ? -1 : add_row(run, own);
}

/* Give a record that is all text its address and checksum, and its part what it says. */
static int finish_text(Run *run, PyObject *entry, long kind, char *record, Py_ssize_t total)
{
    seal_prefix(run, record, total);
    if (kind == LINK)
        return finish_link(run, entry);
    PyObject *told = PyTuple_GetItem(entry, 4), *done = NULL;
    if (kind == FORM) {
        PyObject *forms = told ? PyObject_GetAttr(run->part, names.forms) : NULL;
        int added = forms ? PyList_Append(forms, told) : -1;
        Py_XDECREF(forms);
        return added;
    }
    PyObject *text = told ? PyTuple_GetItem(entry, 5) : NULL;
    if (text)
        done = PyObject_CallMethodObjArgs(run->part, names.add_call, told, text, NULL);
    Py_XDECREF(done);
    return done ? 0 : -1;
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

/* Finish what is pending of the part in one piece; (start, stop, count, a large value or None). */
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
        Py_DECREF(entry);
        run->end += (uint64_t)total;
        stop += total;
        count++;
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = Py_BuildValue("(nnnO)", start, stop, count, last ? last : Py_None);
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
    run->groups = PyObject_GetAttr(run->part, names.call_groups);
    run->dirty = PyObject_GetAttr(run->part, names.dirty);
    run->num_links_to = PyObject_GetAttr(run->part, names.num_links_to);
    if (PyErr_Occurred())
        return -1;
    if (!PyByteArray_Check(run->rows) || !PyList_Check(run->groups) ||
        !PyDict_Check(run->num_links_to) || !PyDict_Check(run->undigested)) {
        PyErr_SetString(PyExc_TypeError, "finish: no part");
        return -1;
    }
    return 0;
}

/* Finish the records of (pending, part, room, most, large, undigested, digest, add_link). */
static PyObject *finish(PyObject *self, PyObject *args)
{
    (void)self;
    Run run;
    memset(&run, 0, sizeof run);
    PyObject *pending, *found = NULL;
    Py_ssize_t most, large;
    if (!PyArg_ParseTuple(args, "OOw*nnOOO", &pending, &run.part, &run.room, &most, &large,
                          &run.undigested, &run.digest, &run.add_link))
        return NULL;
    if (read_part(&run) == 0)
        found = finish_all(&run, pending, most, large);
    PyObject *end = found ? PyLong_FromUnsignedLongLong(run.end) : NULL;
    if (found && (!end || PyObject_SetAttr(run.part, names.end, end) < 0))
        Py_CLEAR(found);
    Py_XDECREF(end);
    Py_XDECREF(run.rows);
    Py_XDECREF(run.groups);
    Py_XDECREF(run.dirty);
    Py_XDECREF(run.num_links_to);
    PyBuffer_Release(&run.room);
    return found;
}

static PyMethodDef methods[] = {
    {"finish", finish, METH_VARARGS, "Finish the records of a part that lie in one piece."},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *made)
{
    (void)made;
    static const char *const words[] = {
        "stamp", "links", "num_links", "_touch", "add_call", "forms", "rows", "call_groups",
        "dirty", "num_links_to", "number", "end", "popleft",
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
