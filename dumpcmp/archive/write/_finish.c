/* Finishes the records of a run in the ring: what finishing.py does of each one, in one call of C.

   A record in the ring lacks what depends on its place in the file: address, checksum, and the
   object header of a value. Its part takes a row of the index; links of groups are made of those,
   and groups of the calls. All of them are as encoder.py has them, to the byte.
   The interpreter's lock is held, but where a copy is waited for or many bytes are digested. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>

#include "_entries.h"
#include "_fetch.h"

#define PREFIX_HEADER 64
#define CRC_AT 4
#define CRC_FROM 8
#define ADDRESS_AT 24
#define ROW_NBYTES 80
#define NO_ROW 0xFFFFFFFFu /* and as a call: the value was lost */
#define MAGIC "dcR1"
#define LINK_COUNT_AT 4     /* of an object header, as encoder.py has them */
#define DATASET_ADDRESS 26
#define MESSAGES_AT 2       /* of the header of a group: how many messages, */
#define NBYTES_AT 8         /* the bytes of them, */
#define NEXT_ORDER_AT 26    /* and the order of the next link */
#define MESSAGE_NBYTES 8
#define LINK_MESSAGE 6
#define LINK_FIELDS 13      /* bytes of a link before its name, if that has no more than 255 */

/* Where the columns of a row lie, as schema.py has them. */
enum { ROW_CALL = 0, ROW_FORM = 4, ROW_ORDER = 8, ROW_PART = 16, ROW_SAME = 20, ROW_HEADER = 24,
       ROW_OFFSET = 32, ROW_NUM = 40, ROW_DIGEST = 48 };

static struct {
    PyObject *stamp, *told, *forms, *rows, *number, *end, *popleft, *entries, *nothing, *path,
        *described, *describe, *add_group;
} names;

/* A group that grows, see objects.py. No circle leads through it: a group knows its parent alone. */
typedef struct {
    PyObject_HEAD
    PyObject *parent, *links, *foremost, *attributes, *long_texts;
    Py_ssize_t depth, num_links, address_at, num_attributes;
    char changed;
} Branch;

static PyTypeObject *branch; /* its type, of the only interpreter that may import it */

#define FIELD(name, kind) {#name, kind, offsetof(Branch, name), 0, NULL}

static PyMemberDef branch_members[] = {
    FIELD(parent, T_OBJECT),        FIELD(links, T_OBJECT_EX),
    FIELD(foremost, T_OBJECT_EX),   FIELD(attributes, T_OBJECT_EX),
    FIELD(long_texts, T_OBJECT_EX), FIELD(depth, T_PYSSIZET),
    FIELD(num_links, T_PYSSIZET),   FIELD(address_at, T_PYSSIZET),
    FIELD(num_attributes, T_PYSSIZET), FIELD(changed, T_BOOL),
    {NULL, 0, 0, 0, NULL},
};

static void branch_free(PyObject *object)
{
    Branch *self = (Branch *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_CLEAR(self->parent);
    Py_CLEAR(self->links);
    Py_CLEAR(self->foremost);
    Py_CLEAR(self->attributes);
    Py_CLEAR(self->long_texts);
    release(object);
    Py_DECREF(type);
}

/* `object` as a group of which all is set; NULL with an exception. */
static Branch *group_of(PyObject *object)
{
    if (!object)
        return NULL;
    Branch *group = PyObject_TypeCheck(object, branch) ? (Branch *)object : NULL;
    if (group && group->links && PyByteArray_Check(group->links) && group->foremost &&
        group->attributes && PyBytes_Check(group->attributes) && group->long_texts)
        return group;
    PyErr_SetString(PyExc_TypeError, "groups: no group");
    return NULL;
}

/* `tuple`, which the garbage collector needs not look at: it is in no circle. */
static PyObject *unseen(PyObject *tuple)
{
    if (tuple)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

static void replace(PyObject **field, PyObject *by)
{
    PyObject *before = *field;
    *field = by;
    Py_XDECREF(before);
}

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

/* What all values of a form have in common, see Template.stamp. */
typedef struct {
    PyObject_HEAD
    uint64_t prefix_nbytes, nbytes;
    char *header, *link;
    Py_ssize_t header_nbytes, link_nbytes, address_at, digest_at, order_at, target_at;
    int is_weight;
    PyObject *told; /* owns the bytes */
} Stamp;

static PyTypeObject *stamp_type;

typedef struct {
    PyObject *form;
    Stamp *stamp;
} KeptStamp;

#define NUM_STAMPS 16 /* that are kept while a run is finished: the same forms come again */

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
    KeptStamp stamps[NUM_STAMPS];
} Run;

static void put4(char *at, uint32_t number) { memcpy(at, &number, 4); }
static void put8(char *at, uint64_t number) { memcpy(at, &number, 8); }

/* `nbytes` more of a bytearray; NULL with an exception. */
static char *grow(PyObject *octets, Py_ssize_t nbytes)
{
    Py_ssize_t size = PyByteArray_Size(octets);
    return PyByteArray_Resize(octets, size + nbytes) < 0 ? NULL : PyByteArray_AsString(octets) + size;
}

/* Be made of what Template tells. */
static int stamp_init(PyObject *object, PyObject *args, PyObject *keywords)
{
    (void)keywords;
    Stamp *stamp = (Stamp *)object;
    unsigned long long prefix_nbytes, nbytes;
    if (stamp->told) {
        PyErr_SetString(PyExc_TypeError, "finish: a stamp is made once");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "KKy#nny#nnp", &prefix_nbytes, &nbytes, &stamp->header,
                          &stamp->header_nbytes, &stamp->address_at, &stamp->digest_at,
                          &stamp->link, &stamp->link_nbytes, &stamp->order_at, &stamp->target_at,
                          &stamp->is_weight))
        return -1;
    stamp->prefix_nbytes = prefix_nbytes;
    stamp->nbytes = nbytes;
    if (stamp->prefix_nbytes != PREFIX_HEADER + (uint64_t)stamp->header_nbytes ||
        stamp->address_at < 0 || stamp->digest_at < 0 || stamp->order_at < 0 ||
        stamp->target_at < 0 || stamp->address_at + 8 > stamp->header_nbytes ||
        stamp->digest_at + DIGEST_NBYTES > stamp->header_nbytes ||
        stamp->order_at + 8 > stamp->link_nbytes || stamp->target_at + 8 > stamp->link_nbytes) {
        PyErr_SetString(PyExc_ValueError, "finish: no stamp of a form");
        return -1;
    }
    stamp->told = Py_NewRef(args);
    return 0;
}

static void stamp_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_CLEAR(((Stamp *)object)->told);
    release(object);
    Py_DECREF(type);
}

static void drop_stamps(KeptStamp *stamps)
{
    for (int i = 0; i < NUM_STAMPS; i++) {
        Py_CLEAR(stamps[i].form);
        Py_CLEAR(stamps[i].stamp);
    }
}

/* The stamp of a form, of those that are kept; NULL with an exception. */
static const Stamp *stamp_of(KeptStamp *stamps, PyObject *form)
{
    KeptStamp *kept = &stamps[((uintptr_t)form >> 4) % NUM_STAMPS];
    if (kept->form == form)
        return kept->stamp;
    PyObject *found = PyObject_GetAttr(form, names.stamp);
    if (!found || Py_TYPE(found) != stamp_type || !((Stamp *)found)->told) {
        if (found)
            PyErr_SetString(PyExc_TypeError, "finish: a form without a stamp");
        Py_XDECREF(found);
        return NULL;
    }
    KeptStamp before = *kept;
    kept->form = Py_NewRef(form);
    kept->stamp = (Stamp *)found;
    Py_XDECREF(before.form);
    Py_XDECREF((PyObject *)before.stamp);
    return kept->stamp;
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

/* Read what a tuple tells of a value, once its bytes are there: (VALUE, part, place, total, call,
   form, number, order, wait, digest). What is read is borrowed. Gives the digest, or None. */
static PyObject *read_value(Entry *entry, char *record)
{
    PyObject *told = entry->told;
    if (PyTuple_Size(told) != 10) {
        PyErr_SetString(PyExc_TypeError, "finish: no value");
        return NULL;
    }
    entry->call = (uint32_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(told, 4));
    entry->what = PyTuple_GetItem(told, 5);
    entry->number = (uint32_t)PyLong_AsUnsignedLongLong(PyTuple_GetItem(told, 6));
    entry->order = PyLong_AsUnsignedLongLong(PyTuple_GetItem(told, 7));
    if (PyErr_Occurred() || receive(PyTuple_GetItem(told, 8), record) < 0)
        return NULL;
    return PyTuple_GetItem(told, 9);
}

/* Finish a value; 1: it came before, or lasts. */
static int finish_value(Run *run, Entry *entry, char *record)
{
    PyObject *given = entry->told ? read_value(entry, record) : Py_None;
    const Stamp *stamp = given ? stamp_of(run->stamps, entry->what) : NULL;
    if (!stamp)
        return -1;
    if (stamp->prefix_nbytes + stamp->nbytes > (uint64_t)entry->total) {
        PyErr_SetString(PyExc_ValueError, "finish: a value larger than its record");
        return -1;
    }
    char row[ROW_NBYTES];
    if (!entry->told)
        memcpy(row + ROW_DIGEST, entry->digest, DIGEST_NBYTES);
    else if (read_digest(run, given, record + stamp->prefix_nbytes, stamp->nbytes,
                         row + ROW_DIGEST) < 0)
        return -1;
    if (run->known && entry->total > run->least) {
        int again = comes_again(run, row + ROW_DIGEST, run->is_first && stamp->is_weight);
        if (again != 0)
            return again;
    }
    uint64_t offset = run->end + stamp->prefix_nbytes, header = run->end + PREFIX_HEADER;
    char *to = record + PREFIX_HEADER;
    memcpy(to, stamp->header, (size_t)stamp->header_nbytes);
    put8(to + stamp->address_at, stamp->nbytes ? offset : UINT64_MAX);
    memcpy(to + stamp->digest_at, row + ROW_DIGEST, DIGEST_NBYTES);
    seal_prefix(run, record, PREFIX_HEADER);
    put4(row + ROW_CALL, entry->call);
    put4(row + ROW_FORM, entry->number);
    put8(row + ROW_ORDER, entry->order);
    put4(row + ROW_PART, run->number);
    put4(row + ROW_SAME, NO_ROW);
    put8(row + ROW_HEADER, header);
    put8(row + ROW_OFFSET, stamp->nbytes ? offset : 0);
    put8(row + ROW_NUM, stamp->nbytes);
    return add_row(run, row);
}

/* Read what a tuple tells of a link: (LINK, part, place, total, (call, form, number, order), holder,
   row, first). What is read is borrowed. */
static int read_link(Entry *entry)
{
    PyObject *owner = PyTuple_GetItem(entry->told, 4), *row = PyTuple_GetItem(entry->told, 6);
    unsigned long long call, number, order;
    entry->to.holder = PyTuple_GetItem(entry->told, 5);
    entry->to.first = PyTuple_GetItem(entry->told, 7);
    if (!owner || !row || !entry->to.holder || !entry->to.first)
        return -1;
    entry->to.row = PyLong_AsUnsignedLongLong(row);
    if (PyErr_Occurred() || !PyArg_ParseTuple(owner, "KOKK", &call, &entry->what, &number, &order))
        return -1;
    entry->call = (uint32_t)call;
    entry->number = (uint32_t)number;
    entry->order = order;
    return 0;
}

/* Have Python add a link to what lies in another part, or needs care. */
static int add_link(Run *run, const Entry *entry)
{
    PyObject *done = PyObject_CallFunction(
        run->add_link, "O(IOIK)OKO", run->part, entry->call, entry->what, entry->number,
        (unsigned long long)entry->order, entry->to.holder, (unsigned long long)entry->to.row,
        entry->to.first);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static int finish_link(Run *run, Entry *entry)
{
    if (entry->told && read_link(entry) < 0)
        return -1;
    uint64_t target = entry->to.row;
    uint64_t num_rows = (uint64_t)PyByteArray_Size(run->rows) / ROW_NBYTES;
    char own[ROW_NBYTES];
    uint32_t held_by = 0, in_part = 0;
    int is_here =
        entry->to.holder == run->part && target < num_rows && !PyDict_Size(run->undigested);
    if (is_here) {
        memcpy(own, PyByteArray_AsString(run->rows) + target * ROW_NBYTES, ROW_NBYTES);
        memcpy(&held_by, own + ROW_CALL, 4);
        memcpy(&in_part, own + ROW_PART, 4);
    }
    if (!is_here || held_by == NO_ROW || in_part != run->number)
        return add_link(run, entry);
    put4(own + ROW_CALL, entry->call);
    put4(own + ROW_FORM, entry->number);
    put8(own + ROW_ORDER, entry->order);
    put4(own + ROW_SAME, (uint32_t)target);
    return add_row(run, own);
}

/* Give a record that is all text its address and checksum, and its part what it says. */
static int finish_text(Run *run, Entry *entry, char *record)
{
    seal_prefix(run, record, entry->total);
    if (entry->kind == LINK)
        return finish_link(run, entry);
    int added = -1;
    if (entry->kind == FORM) {
        PyObject *form = entry->told ? PyTuple_GetItem(entry->told, 4) : entry->what;
        PyObject *forms = form ? PyObject_GetAttr(run->part, names.forms) : NULL;
        added = forms ? PyList_Append(forms, form) : -1;
        Py_XDECREF(forms);
        return added;
    }
    PyObject *told = entry->told ? PyTuple_GetSlice(entry->told, 4, 6)
                                 : PyTuple_Pack(2, entry->what, entry->wording);
    added = told ? PyList_Append(run->told, unseen(told)) : -1;
    Py_XDECREF(told);
    return added;
}

/* What comes next: of `entries`, or of `pending`, where Python has a list of its own. */
typedef struct {
    PyObject *pending;
    Entries *entries;
} Coming;

/* Look at what comes next; 0 where nothing does, or with an exception. What is found is borrowed,
   and stays as long as nobody takes it. */
static int look_ahead(const Coming *coming, Entry *entry)
{
    if (coming->entries && coming->entries->count) {
        *entry = *entry_at(coming->entries, 0);
    } else if (!coming->entries && PySequence_Size(coming->pending) > 0) {
        memset(entry, 0, sizeof *entry);
        entry->told = PySequence_GetItem(coming->pending, 0);
        Py_XDECREF(entry->told);
        if (!entry->told)
            return 0;
    } else {
        return 0;
    }
    PyObject *told = entry->told;
    if (!told)
        return 1;
    if (!PyTuple_Check(told) || PyTuple_Size(told) < 4) {
        PyErr_SetString(PyExc_TypeError, "finish: no record");
        return 0;
    }
    entry->kind = (uint32_t)PyLong_AsLong(PyTuple_GetItem(told, 0));
    entry->part = PyTuple_GetItem(told, 1);
    entry->place = PyLong_AsSsize_t(PyTuple_GetItem(told, 2));
    entry->total = PyLong_AsSsize_t(PyTuple_GetItem(told, 3));
    return !PyErr_Occurred();
}

/* Take what was looked at, with its objects; 0, or -1 with an exception. */
static int take_next(const Coming *coming, Entry *entry)
{
    if (coming->entries) {
        take_entry(coming->entries);
        return 0;
    }
    entry->told = PyObject_CallMethodObjArgs(coming->pending, names.popleft, NULL);
    return entry->told ? 0 : -1;
}

/* Whether a record, which may be the next of the run from `start` to `stop`, belongs into it. */
static int belongs(const Run *run, const Entry *entry, Py_ssize_t start, Py_ssize_t stop,
                   Py_ssize_t most)
{
    int is_kind = entry->kind >= CALL && entry->kind <= LINK;
    return entry->part == run->part && entry->place == stop && is_kind &&
           (stop == start || stop + entry->total - start <= most);
}

/* Finish what is coming of the part in one piece: (start, stop, count, a value or None, digest).
   The value, which lies behind the piece, is large, or came before, or lasts; then its digest is
   told. */
static PyObject *finish_all(Run *run, const Coming *coming, Py_ssize_t most, Py_ssize_t large)
{
    Py_ssize_t start = -1, stop = 0, count = 0;
    PyObject *last = NULL;
    Entry entry;
    while (!last && look_ahead(coming, &entry)) {
        if (start < 0)
            start = stop = entry.place;
        int is_large = entry.kind == VALUE && entry.total > large;
        if (!belongs(run, &entry, start, stop, is_large ? PY_SSIZE_T_MAX : most))
            break;
        if (entry.total < PREFIX_HEADER || entry.place < 0 ||
            entry.place > run->room.len - entry.total) {
            PyErr_SetString(PyExc_ValueError, "finish: a record outside of the ring");
            return NULL;
        }
        if (take_next(coming, &entry) < 0)
            return NULL;
        char *record = (char *)run->room.buf + entry.place;
        int done = is_large              ? 1
                   : entry.kind == VALUE ? finish_value(run, &entry, record)
                                         : finish_text(run, &entry, record);
        if (done > 0)
            last = told_entry(&entry);
        drop_entry(&entry);
        if (done < 0 || (done > 0 && !last))
            return NULL;
        if (!done) {
            run->end += (uint64_t)entry.total;
            stop += entry.total;
            count++;
        }
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *found = Py_BuildValue("(nnnOO)", start, stop, count, last ? last : Py_None,
                                    run->found ? run->found : names.nothing);
    Py_XDECREF(last);
    return found;
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

/* Finish what is pending, as it is told. */
static PyObject *finish_coming(Run *run, PyObject *pending, Py_ssize_t most, Py_ssize_t large)
{
    Coming coming = {pending, NULL};
    PyObject *capsule = PyObject_GetAttr(pending, names.entries);
    if (capsule)
        coming.entries = PyCapsule_GetPointer(capsule, ENTRIES);
    else if (PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear(); /* a list or a deque */
    PyObject *found = PyErr_Occurred() ? NULL : finish_all(run, &coming, most, large);
    Py_XDECREF(capsule);
    return found;
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
        found = finish_coming(&run, pending, most, large);
    PyObject *end = found ? PyLong_FromUnsignedLongLong(run.end) : NULL;
    if (found && (!end || PyObject_SetAttr(run.part, names.end, end) < 0))
        Py_CLEAR(found);
    Py_XDECREF(end);
    Py_XDECREF(run.rows);
    Py_XDECREF(run.told);
    Py_XDECREF(run.found);
    drop_stamps(run.stamps);
    PyBuffer_Release(&run.room);
    return found;
}

/* Note that a group has changed, and so have all above it. */
static int touch(PyObject *object, PyObject *dirty)
{
    while (object && object != Py_None) {
        Branch *group = group_of(object);
        if (!group)
            return -1;
        if (group->changed)
            return 0;
        if (PyList_Append(dirty, object) < 0)
            return -1;
        group->changed = 1;
        object = group->parent;
    }
    return 0;
}

/* Have the group of a call link to a header of this part. */
static int link_to(Branch *group, const Stamp *stamp, uint64_t header)
{
    char *to = grow(group->links, stamp->link_nbytes);
    if (!to)
        return -1;
    memcpy(to, stamp->link, (size_t)stamp->link_nbytes);
    put8(to + stamp->order_at, (uint64_t)group->num_links++);
    put8(to + stamp->target_at, header);
    return 0;
}

typedef struct {
    PyObject *rows, *forms, *outside, *groups, *dirty, *link_outside;
    KeptStamp stamps[NUM_STAMPS];
} Links;

/* Have the group of the call of one row link to its value. */
static int link_row(Links *all, Py_ssize_t number)
{
    uint32_t call, form_number;
    uint64_t header;
    const char *row = PyByteArray_AsString(all->rows) + number * ROW_NBYTES;
    memcpy(&call, row + ROW_CALL, 4);
    memcpy(&form_number, row + ROW_FORM, 4);
    memcpy(&header, row + ROW_HEADER, 8);
    if (call == NO_ROW)
        return 0;
    PyObject *object = PyList_GetItem(all->groups, call);
    Branch *group = group_of(object);
    PyObject *form = group ? PyList_GetItem(all->forms, form_number) : NULL;
    PyObject *key = form && PyDict_Size(all->outside) ? PyLong_FromSsize_t(number) : NULL;
    PyObject *place = key ? PyDict_GetItemWithError(all->outside, key) : NULL;
    Py_XDECREF(key);
    if (!form || PyErr_Occurred())
        return -1;
    if (place) {
        PyObject *done = PyObject_CallFunctionObjArgs(all->link_outside, object, form, place, NULL);
        Py_XDECREF(done);
        if (!done)
            return -1;
    } else {
        const Stamp *stamp = stamp_of(all->stamps, form);
        if (!stamp || link_to(group, stamp, header) < 0)
            return -1;
    }
    return touch(object, all->dirty);
}

/* Make the links of (first row, rows, forms, outside, groups of calls, dirty, way to link to another
   part). */
static PyObject *link_rows(PyObject *self, PyObject *args)
{
    (void)self;
    Links all;
    memset(&all, 0, sizeof all);
    Py_ssize_t first;
    if (!PyArg_ParseTuple(args, "nO!O!O!O!O!O", &first, &PyByteArray_Type, &all.rows,
                          &PyList_Type, &all.forms, &PyDict_Type, &all.outside, &PyList_Type,
                          &all.groups, &PyList_Type, &all.dirty, &all.link_outside))
        return NULL;
    int done = 0;
    for (; done == 0 && first < PyByteArray_Size(all.rows) / ROW_NBYTES; first++)
        done = link_row(&all, first);
    drop_stamps(all.stamps);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

#define NUM_SHARED 7 /* attributes that many calls share, as objects.py names them */
#define NUM_ALIKE 16 /* of which it is kept what they are, as long as groups are made */

/* What is asked of a call, before what many share. */
enum { OP, NUMBER, ORDER, ARGUMENTS, ORIGINS, SHARED };

typedef struct {
    PyObject *facts[NUM_SHARED], *told; /* told: (messages, how many they are) */
} Alike;

typedef struct {
    PyObject *groups, *root, *dirty, *group_at;  /* of the tree */
    PyObject *kind, *op_path, *shared; /* how groups are made and described */
    Fetch of_call;
    char *order, *op; /* attributes as messages, whose content is still missing */
    Py_ssize_t order_nbytes, op_nbytes, most;
    Alike alike[NUM_ALIKE];
} Growing;

/* The attributes that many calls share, borrowed; NULL with an exception. */
static PyObject *shared_of(Growing *all, PyObject *call)
{
    Alike now = {{NULL}, NULL};
    if (!fetch_all(&all->of_call, call, SHARED, NUM_SHARED, now.facts))
        return NULL;
    uintptr_t mixed = 0;
    for (int i = 0; i < NUM_SHARED; i++)
        mixed += (uintptr_t)now.facts[i] >> 4;
    Alike *kept = &all->alike[mixed % NUM_ALIKE];
    if (kept->told && !memcmp(kept->facts, now.facts, sizeof now.facts)) {
        CLEAR_EACH(now);
        return kept->told;
    }
    PyObject *facts = PyTuple_New(NUM_SHARED);
    for (int i = 0; facts && i < NUM_SHARED; i++)
        PyTuple_SetItem(facts, i, Py_NewRef(now.facts[i]));
    now.told = facts ? PyObject_CallObject(all->shared, facts) : NULL;
    Py_XDECREF(facts);
    if (!now.told || !PyTuple_Check(now.told) || PyTuple_Size(now.told) != 2) {
        CLEAR_EACH(now);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "groups: no attributes");
        return NULL;
    }
    CLEAR_EACH(*kept);
    *kept = now;
    return kept->told;
}

/* Give the group the attributes of a call, whose text is short and has no origins. */
static int describe_plain(Growing *all, Branch *group, PyObject *op, PyObject *call)
{
    Py_ssize_t op_nbytes, shared_nbytes;
    const char *name = PyUnicode_AsUTF8AndSize(op, &op_nbytes);
    PyObject *order = name ? fetched(&all->of_call, call, ORDER) : NULL;
    long long position = order ? PyLong_AsLongLong(order) : 0;
    Py_XDECREF(order);
    PyObject *told = PyErr_Occurred() ? NULL : shared_of(all, call);
    char *shared;
    if (!told || PyBytes_AsStringAndSize(PyTuple_GetItem(told, 0), &shared, &shared_nbytes) < 0)
        return -1;
    Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GetItem(told, 1)), room = (op_nbytes + 7) & -8;
    Py_ssize_t total = shared_nbytes + all->order_nbytes + all->op_nbytes + 8 + room;
    PyObject *octets = PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, total);
    char *to = octets ? PyBytes_AsString(octets) : NULL;
    if (!to)
        return -1;
    memcpy(to, shared, (size_t)shared_nbytes);
    to += shared_nbytes;
    memcpy(to, all->order, (size_t)all->order_nbytes);
    put8(to + all->order_nbytes, (uint64_t)position);
    to += all->order_nbytes + 8;
    memcpy(to, all->op, (size_t)all->op_nbytes);
    uint16_t nbytes = (uint16_t)(all->op_nbytes - MESSAGE_NBYTES + room);
    memcpy(to + 2, &nbytes, 2);
    put4(to + all->op_nbytes - 12, (uint32_t)op_nbytes); /* of its type, before the dataspace */
    to += all->op_nbytes;
    memset(to, 0, (size_t)room);
    memcpy(to, name, (size_t)op_nbytes);
    replace(&group->attributes, octets);
    group->num_attributes = count + 2;
    return 0;
}

/* Whether the text of a call is short and without origins, so that it is plain; -1: an exception. */
static int is_plain(Growing *all, PyObject *op, PyObject *call)
{
    PyObject *arguments = fetched(&all->of_call, call, ARGUMENTS);
    PyObject *origins = arguments ? fetched(&all->of_call, call, ORIGINS) : NULL;
    Py_ssize_t length = origins ? PyUnicode_GetLength(arguments) : -1;
    int found = length < 0 ? -1 : length <= all->most;
    if (found > 0)
        found = PyTuple_Check(origins) && !PyTuple_Size(origins);
    Py_XDECREF(arguments);
    Py_XDECREF(origins);
    if (found <= 0)
        return found;
    length = PyUnicode_GetLength(op);
    if (length < 0)
        return -1;
    if (!length || length > all->most)
        return 0;
    if (!PyUnicode_AsUTF8AndSize(op, &length)) { /* half a character is encoded in another way */
        PyErr_Clear();
        return 0;
    }
    return 1;
}

/* Give the group of a call its attributes, as CallText.describe does. */
static int describe(Growing *all, PyObject *object, PyObject *op, PyObject *call, PyObject *text)
{
    Branch *group = (Branch *)object;
    PyObject *known = PyObject_GetAttr(text, names.described);
    int plain = known == Py_None ? is_plain(all, op, call) : 0;
    Py_XDECREF(known);
    if (!known || plain < 0)
        return -1;
    if (!plain) {
        PyObject *done = PyObject_CallMethodObjArgs(text, names.describe, object, call, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    if (describe_plain(all, group, op, call) < 0)
        return -1;
    PyObject *told = unseen(Py_BuildValue("(OnO)", group->attributes, group->num_attributes,
                                          group->long_texts));
    int done = told ? PyObject_SetAttr(text, names.described, told) : -1;
    Py_XDECREF(told);
    return done;
}

/* Where in a part the group of a call is, as CallText.path says; a new reference. */
static PyObject *path_of(Growing *all, PyObject *op, PyObject *call, PyObject *text)
{
    PyObject *path = PyObject_GetAttr(text, names.path);
    if (!path || (PyTuple_Check(path) && PyTuple_Size(path)))
        return path;
    Py_DECREF(path);
    PyObject *split = PyObject_CallFunctionObjArgs(all->op_path, op, NULL), *outer, *last;
    PyObject *number = split ? fetched(&all->of_call, call, NUMBER) : NULL, *name = NULL;
    path = NULL;
    if (number && PyArg_ParseTuple(split, "O!U", &PyTuple_Type, &outer, &last))
        name = PyUnicode_FromFormat("%U#%S", last, number);
    Py_ssize_t count = name ? PyTuple_Size(outer) : 0;
    path = name ? PyTuple_New(count + 1) : NULL;
    for (Py_ssize_t i = 0; path && i < count; i++)
        PyTuple_SetItem(path, i, Py_NewRef(PyTuple_GetItem(outer, i)));
    if (path)
        PyTuple_SetItem(path, count, Py_NewRef(name));
    unseen(path);
    if (path && PyObject_SetAttr(text, names.path, path) < 0)
        Py_CLEAR(path);
    Py_XDECREF(split);
    Py_XDECREF(number);
    Py_XDECREF(name);
    return path;
}

/* Have `parent` take `child` as `name`, as Group.add_group does. */
static int add_child(PyObject *parent, PyObject *name, PyObject *child)
{
    Py_ssize_t nbytes = 0;
    const char *octets = PyUnicode_AsUTF8AndSize(name, &nbytes);
    if (!octets || nbytes != PyUnicode_GetLength(name) || nbytes > 255) {
        PyErr_Clear();
        PyObject *done = PyObject_CallMethodObjArgs(parent, names.add_group, name, child, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    Branch *above = (Branch *)parent;
    Py_ssize_t room = (LINK_FIELDS + nbytes + 8 + 7) & -8, before = PyByteArray_Size(above->links);
    char *to = grow(above->links, MESSAGE_NBYTES + room);
    if (!to)
        return -1;
    const char fields[] = {1, 0x1C, 0}; /* its version; order, kind and character set are told */
    uint16_t kind = LINK_MESSAGE, size = (uint16_t)room;
    memset(to, 0, (size_t)(MESSAGE_NBYTES + room));
    memcpy(to, &kind, 2);
    memcpy(to + 2, &size, 2);
    to += MESSAGE_NBYTES;
    memcpy(to, fields, sizeof fields);
    put8(to + sizeof fields, (uint64_t)above->num_links++);
    to[LINK_FIELDS - 1] = (char)nbytes;
    memcpy(to + LINK_FIELDS, octets, (size_t)nbytes);
    ((Branch *)child)->address_at = before + MESSAGE_NBYTES + LINK_FIELDS + nbytes;
    return 0;
}

/* A group that has nothing yet, a new reference. */
static PyObject *new_group(Growing *all, PyObject *parent)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)all->kind, Py_tp_alloc);
    Branch *group = (Branch *)allocate((PyTypeObject *)all->kind, 0);
    if (!group)
        return NULL;
    if (PyType_GetFlags((PyTypeObject *)all->kind) & Py_TPFLAGS_HAVE_GC)
        PyObject_GC_UnTrack((PyObject *)group); /* it is in no circle */
    group->parent = Py_NewRef(parent);
    group->depth = ((Branch *)parent)->depth + 1;
    group->links = PyByteArray_FromStringAndSize(NULL, 0);
    group->foremost = PyBytes_FromStringAndSize(NULL, 0);
    group->attributes = PyBytes_FromStringAndSize(NULL, 0);
    group->long_texts = PyTuple_New(0);
    if (!group_of((PyObject *)group))
        Py_CLEAR(group);
    return (PyObject *)group;
}

/* The group at `path`, a new reference, made where it is missing. */
static PyObject *group_at(Growing *all, PyObject *path)
{
    PyObject *group = PyDict_GetItemWithError(all->groups, path), *parent;
    if (group || PyErr_Occurred())
        return group_of(group) ? Py_NewRef(group) : NULL;
    Py_ssize_t last = PyTuple_Size(path) - 1;
    if (last > 0) {
        PyObject *above = PyTuple_GetSlice(path, 0, last);
        parent = above ? PyDict_GetItemWithError(all->groups, above) : NULL;
        Py_XINCREF(parent);
        if (!parent && !PyErr_Occurred())
            parent = PyObject_CallFunctionObjArgs(all->group_at, above, NULL);
        Py_XDECREF(above);
    } else {
        parent = Py_NewRef(all->root);
    }
    group = group_of(parent) ? new_group(all, parent) : NULL;
    if (!group || PyDict_SetItem(all->groups, path, group) < 0 ||
        add_child(parent, PyTuple_GetItem(path, last), group) < 0 || touch(group, all->dirty) < 0)
        Py_CLEAR(group);
    Py_XDECREF(parent);
    return group;
}

/* The group of (call, text), made and described; a new reference. */
static PyObject *grown(Growing *all, PyObject *told)
{
    if (told == Py_None)
        return PyObject_CallFunctionObjArgs(all->kind, Py_None, NULL);
    PyObject *call, *text;
    if (!PyTuple_Check(told) || !PyArg_ParseTuple(told, "OO", &call, &text))
        return NULL;
    PyObject *op = fetched(&all->of_call, call, OP);
    PyObject *path = op ? path_of(all, op, call, text) : NULL;
    PyObject *group = path ? group_at(all, path) : NULL;
    if (group && describe(all, group, op, call, text) < 0)
        Py_CLEAR(group);
    Py_XDECREF(op);
    Py_XDECREF(path);
    return group;
}

/* Make the groups of calls that have none, of (told, groups of calls, groups, root, dirty, way to
   have a group at a path, how groups are made and described). */
static PyObject *grow_calls(PyObject *self, PyObject *args)
{
    (void)self;
    Growing all;
    memset(&all, 0, sizeof all);
    PyObject *told, *of_calls, *call, *call_names, *shared_names;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O(O!OO!O!O!Oy#y#n)", &PyList_Type, &told, &PyList_Type,
                          &of_calls, &PyDict_Type, &all.groups, branch, &all.root, &PyList_Type,
                          &all.dirty, &all.group_at, &PyType_Type, &all.kind, &all.op_path,
                          &PyType_Type, &call, &PyTuple_Type, &call_names, &PyTuple_Type,
                          &shared_names, &all.shared, &all.order,
                          &all.order_nbytes, &all.op, &all.op_nbytes, &all.most))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)all.kind, branch) || all.op_nbytes < 12 ||
        PyTuple_Size(call_names) != SHARED || PyTuple_Size(shared_names) != NUM_SHARED) {
        PyErr_SetString(PyExc_TypeError, "groups: not known how they are made");
        return NULL;
    }
    int done = 0;
    if (extend_fetch(&all.of_call, call, call_names) < 0 ||
        extend_fetch(&all.of_call, call, shared_names) < 0 || end_fetch(&all.of_call, call) < 0)
        done = -1;
    for (Py_ssize_t i = PyList_Size(of_calls); done == 0 && i < PyList_Size(told); i++) {
        PyObject *group = grown(&all, PyList_GetItem(told, i));
        done = group ? PyList_Append(of_calls, group) : -1;
        Py_XDECREF(group);
    }
    CLEAR_EACH(all.alike);
    clear_fetch(&all.of_call);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* Lay the header of a group behind `block`, which lies at `start`, and tell its parent. */
static int lay_group(PyObject *block, uint64_t start, PyObject *empty, Branch *group)
{
    char *content;
    Py_ssize_t nbytes, at = PyByteArray_Size(block);
    if (PyBytes_AsStringAndSize(empty, &content, &nbytes) < 0)
        return -1;
    Py_ssize_t links = PyByteArray_Size(group->links), told = PyBytes_Size(group->attributes);
    char *to = grow(block, nbytes + links + told);
    if (!to)
        return -1;
    memcpy(to, content, (size_t)nbytes);
    memcpy(to + nbytes, PyByteArray_AsString(group->links), (size_t)links);
    memcpy(to + nbytes + links, PyBytes_AsString(group->attributes), (size_t)told);
    uint16_t messages;
    uint32_t size;
    memcpy(&messages, to + MESSAGES_AT, 2);
    memcpy(&size, to + NBYTES_AT, 4);
    messages = (uint16_t)(messages + group->num_links + group->num_attributes);
    memcpy(to + MESSAGES_AT, &messages, 2);
    put4(to + NBYTES_AT, size + (uint32_t)(links + told));
    put8(to + NEXT_ORDER_AT, (uint64_t)group->num_links);
    group->changed = 0;
    if (!group->parent || group->parent == Py_None)
        return 0;
    Branch *parent = group_of(group->parent);
    if (!parent)
        return -1;
    if (group->address_at < 0 || group->address_at > PyByteArray_Size(parent->links) - 8) {
        PyErr_SetString(PyExc_ValueError, "groups: a group outside of its parent");
        return -1;
    }
    put8(PyByteArray_AsString(parent->links) + group->address_at, start + (uint64_t)at);
    return 0;
}

/* Whether it is told by links and attributes alone, of which a header has room for all. */
static int is_simple(const Branch *group)
{
    return PyTuple_Check(group->long_texts) && !PyTuple_Size(group->long_texts) &&
           PyBytes_Check(group->foremost) && !PyBytes_Size(group->foremost) &&
           group->num_links + group->num_attributes < 65000;
}

/* The headers of (groups, their address, the header of an empty one, way to lay down one that is not
   simple), one after another. */
static PyObject *lay_groups(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *groups, *empty, *put;
    unsigned long long start;
    if (!PyArg_ParseTuple(args, "O!KSO", &PyList_Type, &groups, &start, &empty, &put))
        return NULL;
    if (PyBytes_Size(empty) < NEXT_ORDER_AT + 8) {
        PyErr_SetString(PyExc_ValueError, "groups: no header");
        return NULL;
    }
    PyObject *block = PyByteArray_FromStringAndSize(NULL, 0);
    for (Py_ssize_t i = 0; block && i < PyList_Size(groups); i++) {
        PyObject *object = PyList_GetItem(groups, i);
        Branch *group = group_of(object);
        int done = group ? 0 : -1;
        if (group && is_simple(group)) {
            done = lay_group(block, start, empty, group);
        } else if (group) {
            PyObject *told = PyObject_CallFunction(put, "OOK", object, block, start);
            Py_XDECREF(told);
            done = told ? 0 : -1;
        }
        if (done < 0)
            Py_CLEAR(block);
    }
    return block;
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
    {"grow_calls", grow_calls, METH_VARARGS, "Make the groups of calls that have none yet."},
    {"lay_groups", lay_groups, METH_VARARGS, "The headers of groups, one after another."},
    {"finish", finish, METH_VARARGS, "Finish the records of a part that lie in one piece."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot branch_slots[] = {
    {Py_tp_members, branch_members}, {Py_tp_dealloc, branch_free},
    {Py_tp_doc, "What is known of a group that grows."}, {0, NULL}};
static PyType_Slot stamp_slots[] = {
    {Py_tp_init, stamp_init}, {Py_tp_dealloc, stamp_free},
    {Py_tp_doc, "What all values of a form have in common."}, {0, NULL}};
static PyType_Spec stamp_spec = {"_finish.Stamp", sizeof(Stamp), 0, Py_TPFLAGS_DEFAULT,
                                 stamp_slots};
static PyType_Spec branch_spec = {"_finish.Branch", sizeof(Branch), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, branch_slots};

static int set_up(PyObject *made)
{
    static const char *const words[] = {
        "stamp", "told", "forms", "rows", "number", "end", "popleft", "entries", "", "_path",
        "_described", "describe", "add_group",
    };
    PyObject **fields = (PyObject **)&names;
    _Static_assert(sizeof words / sizeof *words == sizeof names / sizeof(PyObject *), "one each");
    const uint16_t one = 1;
    if (*(const char *)&one != 1) {
        PyErr_SetString(PyExc_ImportError, "parts are little-endian, and this machine is not");
        return -1;
    }
    if (branch) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    branch = (PyTypeObject *)PyType_FromSpec(&branch_spec);
    stamp_type = (PyTypeObject *)PyType_FromSpec(&stamp_spec);
    if (!branch || PyModule_AddObjectRef(made, "Branch", (PyObject *)branch) < 0 || !stamp_type ||
        PyModule_AddObjectRef(made, "Stamp", (PyObject *)stamp_type) < 0)
        return -1;
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
