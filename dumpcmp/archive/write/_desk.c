/* Lays calls, values and links into the ring: what staging.py does of those that are plain.

   Every function gives None where something is out of the ordinary: the ring is full or at its
   end, the part is, somebody else is at it, a form is new. Nothing has happened then, and the way
   in Python goes on from there. The interpreter's lock is held throughout, and no other code of
   Python runs in between: neither a handler of a signal nor the garbage collector. So it is enough
   to see that nobody holds the locks of the ring. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "_digest.h"

#define ALIGNMENT 64
#define LINK_NBYTES 128
#define TAIL_AT 24 /* where the ring's first page says which record is the oldest */
#define AT_ONCE (1 << 20) /* bytes in the ring that are worth waking the writer */

enum { CALL = 2, FORM = 3, VALUE = 4, LINK = 5 };

typedef unsigned long long Count;

typedef struct {
    PyObject_HEAD
    Count head, tail, used, reach, sequence;
    char wrapped, asked;
} Positions;

typedef struct {
    PyObject_HEAD
    Count nonce, most_nbytes, nbytes, num_rows, num_calls;
    char full;
} Filling;

typedef struct {
    PyObject_HEAD
    Count total, nbytes, prefix_nbytes, blocks;
} Footprint;

typedef struct {
    PyObject_HEAD
    Count num_records, nbytes, most_links, before_room;
    char is_open;
    PyObject *step;                                          /* that is being written */
    PyObject *ring, *append, *drain, *locks, *digest, *hasher, *call_plan;
    PyObject *forms, *form_names, *full; /* by which records are known, see schema.form_key */
    Py_buffer room;
} Desk;

typedef struct {
    PyObject *positions, *filling, *footprint, *desk, *partial; /* types */
    PyObject *plan, *calls, *slots, *number, *part, *forms, *prefix, *asleep, *nudge, *locked,
        *changes_lane, *text, *nothing;
    PyObject *key, *model, *step, *op, *call, *slot, *order, *kept, *same_as, *stored, *lying,
        *error, *found; /* the last is an attribute of a source: its digest */
    PyObject *kinds[8];
} State;

static struct PyModuleDef module;
static State *state; /* of the only interpreter that may import it */

#define MEMBER(type, name, kind) {#name, kind, offsetof(type, name), 0, NULL}

static PyMemberDef positions_members[] = {
    MEMBER(Positions, head, T_ULONGLONG),     MEMBER(Positions, tail, T_ULONGLONG),
    MEMBER(Positions, used, T_ULONGLONG),     MEMBER(Positions, reach, T_ULONGLONG),
    MEMBER(Positions, sequence, T_ULONGLONG), MEMBER(Positions, wrapped, T_BOOL),
    MEMBER(Positions, asked, T_BOOL),         {NULL, 0, 0, 0, NULL},
};

static PyMemberDef filling_members[] = {
    MEMBER(Filling, nonce, T_ULONGLONG),     MEMBER(Filling, most_nbytes, T_ULONGLONG),
    MEMBER(Filling, nbytes, T_ULONGLONG),    MEMBER(Filling, num_rows, T_ULONGLONG),
    MEMBER(Filling, num_calls, T_ULONGLONG), MEMBER(Filling, full, T_BOOL),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef footprint_members[] = {
    MEMBER(Footprint, total, T_ULONGLONG),
    MEMBER(Footprint, nbytes, T_ULONGLONG),
    MEMBER(Footprint, prefix_nbytes, T_ULONGLONG),
    MEMBER(Footprint, blocks, T_ULONGLONG),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef desk_members[] = {
    MEMBER(Desk, num_records, T_ULONGLONG), MEMBER(Desk, nbytes, T_ULONGLONG),
    MEMBER(Desk, is_open, T_BOOL),          MEMBER(Desk, step, T_OBJECT),
    {NULL, 0, 0, 0, NULL},
};

static void free_plain(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int desk_traverse(PyObject *object, visitproc visit, void *arg)
{
    Desk *self = (Desk *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->step);
    Py_VISIT(self->ring);
    Py_VISIT(self->append);
    Py_VISIT(self->drain);
    Py_VISIT(self->locks);
    Py_VISIT(self->digest);
    Py_VISIT(self->hasher);
    Py_VISIT(self->call_plan);
    Py_VISIT(self->forms);
    Py_VISIT(self->form_names);
    Py_VISIT(self->full);
    return 0;
}

static int desk_clear(PyObject *object)
{
    Desk *self = (Desk *)object;
    if (self->room.buf) {
        PyBuffer_Release(&self->room);
        self->room.buf = NULL;
    }
    Py_CLEAR(self->step);
    Py_CLEAR(self->ring);
    Py_CLEAR(self->append);
    Py_CLEAR(self->drain);
    Py_CLEAR(self->locks);
    Py_CLEAR(self->digest);
    Py_CLEAR(self->hasher);
    Py_CLEAR(self->call_plan);
    Py_CLEAR(self->forms);
    Py_CLEAR(self->form_names);
    Py_CLEAR(self->full);
    return 0;
}

static void desk_free(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    desk_clear(object);
    free_plain(object);
}

/* Be ready for (ring, room, locks, drain, digest, hasher, CallPlan, most_links, before_room): so
   many bytes of the ring's memory lie before its room. */
static PyObject *desk_prepare(PyObject *object, PyObject *args)
{
    Desk *self = (Desk *)object;
    PyObject *ring, *room, *locks, *drain, *digest, *hasher, *call_plan;
    Count most_links, before_room;
    if (!PyArg_ParseTuple(args, "O!OO!OOOOKK", state->positions, &ring, &room, &PyTuple_Type,
                          &locks, &drain, &digest, &hasher, &call_plan, &most_links, &before_room))
        return NULL;
    PyObject *pending = PyObject_GetAttrString(drain, "pending");
    PyObject *append = pending ? PyObject_GetAttrString(pending, "append") : NULL;
    Py_XDECREF(pending);
    if (!append || PyObject_GetBuffer(room, &self->room, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(append);
        return NULL;
    }
    self->ring = Py_NewRef(ring);
    self->append = append;
    self->locks = Py_NewRef(locks);
    self->drain = Py_NewRef(drain);
    self->digest = Py_NewRef(digest);
    self->hasher = Py_NewRef(hasher);
    self->call_plan = Py_NewRef(call_plan);
    self->most_links = most_links;
    self->before_room = before_room;
    self->is_open = 1;
    Py_RETURN_NONE;
}

/* Know records whose attributes (names, of the slot not) are in (forms), and are kept in full. */
static PyObject *desk_know(PyObject *object, PyObject *args)
{
    Desk *self = (Desk *)object;
    PyObject *forms, *form_names, *full;
    if (!PyArg_ParseTuple(args, "O!O!O", &PyDict_Type, &forms, &PyTuple_Type, &form_names, &full))
        return NULL;
    self->forms = Py_NewRef(forms);
    self->form_names = Py_NewRef(form_names);
    self->full = Py_NewRef(full);
    Py_RETURN_NONE;
}

/* Let go of the ring's memory. */
static PyObject *desk_leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    Desk *self = (Desk *)object;
    self->is_open = 0;
    if (self->room.buf) {
        PyBuffer_Release(&self->room);
        self->room.buf = NULL;
    }
    Py_RETURN_NONE;
}

/* Whether nobody is at the ring: 1, 0, or -1 with an exception. */
static int is_free(Desk *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(self->locks); i++) {
        PyObject *held = PyObject_CallNoArgs(PyTuple_GetItem(self->locks, i));
        if (!held)
            return -1;
        int taken = held != Py_False;
        Py_DECREF(held);
        if (taken)
            return 0;
    }
    return 1;
}

/* Where `nbytes` can lie behind the last record; an empty ring begins again at its start, and says
   so where whoever finds it after a kill looks. */
static char *place_for(Desk *self, Count nbytes)
{
    Positions *ring = (Positions *)self->ring;
    if (!self->is_open || !self->room.buf)
        return NULL;
    if (!ring->used && !ring->wrapped && ring->head) {
        uint64_t tail[2] = {0, ring->sequence};
        ring->head = ring->tail = 0;
        memcpy((char *)self->room.buf - self->before_room + TAIL_AT, tail, sizeof tail);
    }
    Count end = ring->wrapped ? ring->tail : ring->reach;
    return end < ring->head + nbytes ? NULL : (char *)self->room.buf + ring->head;
}

/* `tuple`, which the garbage collector needs not look at: it is in no circle. There are several
   for each value, and to look at them all took a tenth of the time. */
static PyObject *unseen(PyObject *tuple)
{
    if (tuple)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

typedef struct {
    uint16_t kind, blocks;
    uint32_t call, form, row;
    uint64_t nonce, nbytes, order;
} Fields;

static void write_fields(char *at, const Fields *fields, const char *magic, uint64_t sequence)
{
    memset(at, 0, ALIGNMENT);
    memcpy(at, magic, 4);
    memcpy(at + 8, &fields->nonce, 8);
    memcpy(at + 32, &fields->nbytes, 8);
    memcpy(at + 40, &fields->kind, 2);
    memcpy(at + 42, &fields->blocks, 2);
    memcpy(at + 44, &fields->call, 4);
    memcpy(at + 48, &fields->form, 4);
    memcpy(at + 52, &fields->row, 4);
    memcpy(at + 56, &fields->order, 8);
    __atomic_store_n((uint64_t *)(at + 16), sequence, __ATOMIC_RELEASE); /* which makes it valid */
}

/* Hand the record on, which is complete; takes `entry`. 0, or -1 with an exception. */
static int publish(Desk *self, PyObject *entry, Count nbytes)
{
    Positions *ring = (Positions *)self->ring;
    PyObject *done = PyObject_CallFunctionObjArgs(self->append, entry, NULL);
    Py_DECREF(entry);
    if (!done)
        return -1;
    Py_DECREF(done);
    ring->sequence++;
    ring->head += nbytes;
    ring->used += nbytes;
    return 0;
}

/* Whether the writer sleeps, or has much to do, and was not woken yet; -1 with an exception. */
static int must_wake(Desk *self)
{
    Positions *ring = (Positions *)self->ring;
    if (ring->asked)
        return 0;
    if (ring->used > AT_ONCE)
        return 1;
    PyObject *asleep = PyObject_GetAttr(self->drain, state->asleep);
    int is_due = asleep ? asleep == Py_True : -1;
    Py_XDECREF(asleep);
    return is_due;
}

/* Wake the writer where that is due. Code of Python runs here. */
static int wake(Desk *self)
{
    int is_due = must_wake(self);
    if (is_due <= 0)
        return is_due;
    ((Positions *)self->ring)->asked = 1;
    PyObject *nudge = PyObject_GetAttr(self->drain, state->nudge);
    PyObject *done = nudge ? PyObject_CallNoArgs(nudge) : NULL;
    Py_XDECREF(nudge);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The part that comes next of the step, a new reference; NULL without an exception where `take`
   has more to do than to use it. */
static Filling *part_of(PyObject *step)
{
    PyObject *changes = PyObject_GetAttr(step, state->changes_lane);
    int is_due = changes != Py_False;
    Py_XDECREF(changes);
    PyObject *plan = is_due ? NULL : PyObject_GetAttr(step, state->plan);
    if (!plan)
        return NULL;
    if (!PyObject_TypeCheck(plan, (PyTypeObject *)state->filling) || ((Filling *)plan)->full) {
        Py_DECREF(plan);
        return NULL;
    }
    return (Filling *)plan;
}

static Count number_in(PyObject *object)
{
    Count number = object ? PyLong_AsUnsignedLongLong(object) : 0;
    Py_XDECREF(object);
    return number;
}

/* Lay down a call of (step, name, call, told, order); its CallPlan, or None. */
static PyObject *lay_call(Desk *self, PyObject *const *args)
{
    PyObject *step = args[0], *name = args[1], *call = args[2], *told = args[3];
    Count order = PyLong_AsUnsignedLongLong(args[4]);
    if (self->step != step || PyErr_Occurred())
        return NULL;
    Filling *plan = part_of(step);
    PyObject *calls = plan ? PyObject_GetAttr(step, state->calls) : NULL;
    PyObject *prefix = calls ? PyObject_GetAttr(told, state->prefix) : NULL;
    PyObject *part = prefix ? PyObject_GetAttr((PyObject *)plan, state->part) : NULL;
    PyObject *planned = NULL, *entry = NULL;
    Py_ssize_t total;
    char *text;
    if (!part || PyDict_Contains(calls, name) || PyBytes_AsStringAndSize(prefix, &text, &total) < 0)
        goto end;
    char *place = place_for(self, (Count)total);
    if (!place)
        goto end;
    planned = PyObject_CallFunction(self->call_plan, "OOK", call, plan, plan->num_calls);
    entry = Py_BuildValue("(OOnnOO)", state->kinds[CALL], part, place - (char *)self->room.buf,
                          total, call, told);
    if (!planned || !entry || PyDict_SetItem(calls, name, planned) < 0) {
        Py_CLEAR(planned);
        Py_XDECREF(entry);
        goto end;
    }
    Fields fields = {CALL, (uint16_t)(total / ALIGNMENT), (uint32_t)plan->num_calls, 0, 0,
                     plan->nonce, 0, order};
    memcpy(place + ALIGNMENT, text + ALIGNMENT, (size_t)total - ALIGNMENT);
    write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
    if (publish(self, entry, (Count)total) < 0)
        Py_CLEAR(planned);
    plan->num_calls++;
    plan->full = plan->num_calls >= self->most_links / 2;
    plan->nbytes += (Count)total;
end:
    Py_XDECREF((PyObject *)plan);
    Py_XDECREF(calls);
    Py_XDECREF(prefix);
    Py_XDECREF(part);
    return planned;
}

/* Declare the form in the part, of which there is none like it yet; 0 where it cannot be now. */
static int declare_form(Desk *self, Filling *plan, PyObject *part, PyObject *forms, PyObject *form)
{
    PyObject *text = PyObject_GetAttr(form, state->text);
    PyObject *number = PyLong_FromSsize_t(PyDict_Size(forms)), *entry = NULL;
    char *content, *place = NULL;
    Py_ssize_t total = 0;
    if (text && number && PyBytes_AsStringAndSize(text, &content, &total) == 0)
        place = place_for(self, (Count)total);
    if (place)
        entry = Py_BuildValue("(OOnnO)", state->kinds[FORM], part, place - (char *)self->room.buf,
                              total, form);
    int done = entry && PyDict_SetItem(forms, form, number) == 0;
    if (done) {
        Fields fields = {FORM, (uint16_t)(total / ALIGNMENT), 0,
                         (uint32_t)PyLong_AsUnsignedLong(number), 0, plan->nonce, 0, 0};
        memcpy(place + ALIGNMENT, content + ALIGNMENT, (size_t)total - ALIGNMENT);
        write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
        done = publish(self, Py_NewRef(entry), (Count)total) == 0;
        plan->nbytes += (Count)total;
    }
    Py_XDECREF(entry);
    Py_XDECREF(number);
    Py_XDECREF(text);
    return done;
}

typedef struct {
    Filling *plan;
    PyObject *slots, *part;
    Footprint *form;
    Count number, form_number, row;
} Row;

static void forget(Row *row)
{
    Py_CLEAR(row->plan);
    Py_CLEAR(row->slots);
    Py_CLEAR(row->part);
}

/* What the next row of the part needs, of a call that is declared there; 0 where it is not. */
static int begin_row(Desk *self, PyObject *planned, PyObject *slot, PyObject *form, Row *row)
{
    memset(row, 0, sizeof *row);
    if (!self->step || !PyObject_TypeCheck(form, (PyTypeObject *)state->footprint))
        return 0;
    row->plan = part_of(self->step);
    PyObject *own = row->plan ? PyObject_GetAttr(planned, state->plan) : NULL;
    int is_here = own == (PyObject *)row->plan;
    Py_XDECREF(own);
    if (!own || !is_here)
        return 0;
    row->slots = PyObject_GetAttr(planned, state->slots);
    row->part = PyObject_GetAttr((PyObject *)row->plan, state->part);
    if (!row->part || !row->slots || PyDict_Contains(row->slots, slot))
        return 0;
    PyObject *forms = PyObject_GetAttr((PyObject *)row->plan, state->forms);
    int is_known = forms && (PyDict_GetItem(forms, form) ||
                             declare_form(self, row->plan, row->part, forms, form));
    row->form_number = is_known ? PyLong_AsUnsignedLongLong(PyDict_GetItem(forms, form)) : 0;
    Py_XDECREF(forms);
    row->number = number_in(PyObject_GetAttr(planned, state->number));
    row->form = (Footprint *)form;
    row->row = row->plan->num_rows;
    return is_known && !PyErr_Occurred();
}

static void count(Desk *self, Row *row, Count nbytes)
{
    Filling *plan = row->plan;
    plan->nbytes += nbytes;
    if (plan->nbytes >= plan->most_nbytes || plan->num_rows >= self->most_links)
        plan->full = 1;
    plan->num_rows++;
    self->num_records++;
}

static Fields fields_of(const Row *row, int kind, Count blocks, Count nbytes, Count order)
{
    Fields fields = {(uint16_t)kind,   (uint16_t)blocks, (uint32_t)row->number,
                     (uint32_t)row->form_number, (uint32_t)row->row, row->plan->nonce,
                     nbytes, order};
    return fields;
}

/* Lay down a value of (planned, slot, where, form, order, then address, itemsize, shape, stride, or
   what fills a room with the bytes later); the digest, or True where they come later, or None. */
static PyObject *lay_value(Desk *self, PyObject *const *args, Py_ssize_t num_args)
{
    PyObject *planned = args[0], *slot = args[1], *where = args[2];
    Row row;
    PyObject *digest = NULL, *holding = NULL, *entry = NULL;
    int waits = num_args == 6;
    if (!begin_row(self, planned, slot, args[3], &row))
        goto end;
    Footprint *form = row.form;
    int is_short = waits || form->nbytes <= MOST_AT_ONCE;
    char *place = form->nbytes && is_short ? place_for(self, form->total) : NULL;
    if (!place || 2 * form->total > ((Positions *)self->ring)->reach)
        goto end;
    char *to = place + form->prefix_nbytes;
    if (form->nbytes % ALIGNMENT)
        memset(place + form->total - ALIGNMENT, 0, ALIGNMENT);
    PyObject *wait = NULL;
    if (waits) {
        PyObject *later = PyMemoryView_FromMemory(to, (Py_ssize_t)form->nbytes, PyBUF_WRITE);
        wait = later ? PyObject_CallFunctionObjArgs(state->partial, args[5], later, NULL) : NULL;
        Py_XDECREF(later);
        digest = wait ? Py_NewRef(Py_True) : NULL;
        if (!wait)
            goto end;
    } else {
        Dim dims[MOST_DIMS];
        int size = (int)PyLong_AsLong(args[6]);
        int num_dims = read_dims(args[7], args[8], size, dims);
        Count nbytes = (Count)size;
        for (int i = 0; i < num_dims; i++)
            nbytes *= (Count)dims[i].count;
        int known = size == 1 || size == 2 || size == 4 || size == 8 || size == 16;
        if (num_dims <= 0 || !known || nbytes != form->nbytes)
            goto end;
        const char *from = (const char *)(uintptr_t)PyLong_AsUnsignedLongLong(args[5]);
        if (PyErr_Occurred())
            goto end;
        if (nbytes < LONG) {
            copy_all(to, from, dims, num_dims, size);
            digest = digest_at_once(self->digest, to, (Py_ssize_t)nbytes);
        } else if (has_rows(dims, num_dims, size)) {
            digest = copy_digested(self->hasher, to, from, dims, num_dims, size);
        }
        if (!digest)
            goto end;
    }
    Count order = PyLong_AsUnsignedLongLong(args[4]);
    holding = unseen(Py_BuildValue("(OKO)", row.plan, row.row, where));
    entry = Py_BuildValue("(OOnKKOKOOO)", state->kinds[VALUE], row.part,
                          place - (char *)self->room.buf, form->total, row.number, form,
                          row.form_number, args[4], waits ? wait : Py_None,
                          waits ? state->nothing : digest);
    Py_XDECREF(wait);
    if (!holding || !entry || PyDict_SetItem(row.slots, slot, holding) < 0) {
        Py_CLEAR(digest);
        Py_XDECREF(entry);
        goto end;
    }
    unseen(entry);
    Fields fields = fields_of(&row, VALUE, form->blocks, form->nbytes, order);
    write_fields(place, &fields, waits ? "dcW1" : "dcR1", ((Positions *)self->ring)->sequence);
    if (publish(self, entry, form->total) < 0)
        Py_CLEAR(digest);
    count(self, &row, form->total);
    self->nbytes += form->nbytes;
end:
    forget(&row);
    Py_XDECREF(holding);
    return digest;
}

/* Where the value lies that is called `where`, a new reference. */
static PyObject *holding_of(PyObject *step, PyObject *where)
{
    PyObject *calls = PyObject_GetAttr(step, state->calls);
    PyObject *name = calls ? PyTuple_GetSlice(where, 0, 2) : NULL;
    PyObject *call = name ? PyDict_GetItem(calls, name) : NULL;
    PyObject *slots = call ? PyObject_GetAttr(call, state->slots) : NULL;
    PyObject *found = slots ? PyDict_GetItem(slots, PyTuple_GetItem(where, 2)) : NULL;
    Py_XINCREF(found);
    Py_XDECREF(calls);
    Py_XDECREF(name);
    Py_XDECREF(slots);
    return found;
}

/* Lay down a link of (planned, slot, form, order, where); True, or None. */
static PyObject *lay_link(Desk *self, PyObject *const *args)
{
    PyObject *planned = args[0], *slot = args[1], *form = args[2], *where = args[4];
    Row row;
    PyObject *to = NULL, *holder = NULL, *entry = NULL, *done = NULL;
    if (!begin_row(self, planned, slot, form, &row))
        goto end;
    char *place = place_for(self, LINK_NBYTES);
    to = place && PyTuple_Check(where) ? holding_of(self->step, where) : NULL;
    holder = to ? PyObject_GetAttr(PyTuple_GetItem(to, 0), state->part) : NULL;
    if (!holder)
        goto end;
    Count part = number_in(PyObject_GetAttr(holder, state->number));
    Count target = PyLong_AsUnsignedLongLong(PyTuple_GetItem(to, 1));
    Count order = PyLong_AsUnsignedLongLong(args[3]);
    entry = Py_BuildValue("(OOni(KOKO)OKO)", state->kinds[LINK], row.part,
                          place - (char *)self->room.buf, LINK_NBYTES, row.number, form,
                          row.form_number, args[3], holder, target, PyTuple_GetItem(to, 2));
    if (PyErr_Occurred() || !entry || PyDict_SetItem(row.slots, slot, to) < 0) {
        Py_XDECREF(entry);
        goto end;
    }
    unseen(entry);
    Fields fields = fields_of(&row, LINK, LINK_NBYTES / ALIGNMENT, 0, order);
    memset(place + ALIGNMENT, ' ', ALIGNMENT);
    char text[ALIGNMENT];
    int length = PyOS_snprintf(text, sizeof text, "[%llu,%llu]", part, target);
    memcpy(place + ALIGNMENT, text, (size_t)length);
    write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
    if (publish(self, entry, LINK_NBYTES) == 0)
        done = Py_NewRef(Py_True);
    count(self, &row, LINK_NBYTES);
end:
    forget(&row);
    Py_XDECREF(to);
    Py_XDECREF(holder);
    return done;
}

/* Whether `step` is that of a Key. */
static int is_of_step(PyObject *step, PyObject *key)
{
    PyObject *ours = PyObject_GetAttr(step, state->number);
    PyObject *theirs = ours ? PyObject_GetAttr(key, state->step) : NULL;
    int is_same = theirs ? PyObject_RichCompareBool(ours, theirs, Py_EQ) : -1;
    Py_XDECREF(ours);
    Py_XDECREF(theirs);
    if (is_same <= 0)
        return is_same;
    ours = PyObject_GetAttr(step, state->model);
    theirs = ours ? PyObject_GetAttr(key, state->model) : NULL;
    is_same = theirs ? PyObject_RichCompareBool(ours, theirs, Py_EQ) : -1;
    Py_XDECREF(ours);
    Py_XDECREF(theirs);
    return is_same;
}

/* What the value of a Key is called within its step, a new reference. */
static PyObject *where_of(PyObject *key)
{
    PyObject *op = PyObject_GetAttr(key, state->op);
    PyObject *call = op ? PyObject_GetAttr(key, state->call) : NULL;
    PyObject *slot = call ? PyObject_GetAttr(key, state->slot) : NULL;
    PyObject *where = unseen(slot ? PyTuple_Pack(3, op, call, slot) : NULL);
    Py_XDECREF(op);
    Py_XDECREF(call);
    Py_XDECREF(slot);
    return where;
}

/* The form of a record, borrowed; NULL where none like it has come. One that is not kept in full,
   or stands for something else, is not known here: to hash it would run Python. */
static PyObject *form_of(Desk *self, PyObject *record, PyObject *slot)
{
    PyObject *kept = PyObject_GetAttr(record, state->kept);
    PyObject *stored = kept ? PyObject_GetAttr(record, state->stored) : NULL;
    int is_plain = kept == self->full && stored == Py_None;
    Py_XDECREF(kept);
    Py_XDECREF(stored);
    Py_ssize_t count = PyTuple_Size(self->form_names);
    PyObject *facts = is_plain ? PyTuple_New(count + 1) : NULL, *form = NULL;
    if (!facts)
        return NULL;
    PyTuple_SetItem(facts, 0, Py_NewRef(slot));
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *fact = PyObject_GetAttr(record, PyTuple_GetItem(self->form_names, i));
        if (!fact)
            break;
        PyTuple_SetItem(facts, i + 1, fact);
    }
    PyObject *known_by = PyErr_Occurred() ? NULL : PyTuple_Pack(2, facts, Py_True);
    form = known_by ? PyDict_GetItemWithError(self->forms, known_by) : NULL;
    Py_XDECREF(known_by);
    Py_DECREF(facts);
    return form;
}

/* Lay down a Record, whose elements are `lying` there, or which is a link; like lay_value. */
static PyObject *lay_record(Desk *self, PyObject *record, PyObject *lying)
{
    PyObject *key = PyObject_GetAttr(record, state->key), *where = NULL, *name = NULL;
    PyObject *calls = NULL, *order = NULL, *same = NULL, *to = NULL, *done = NULL;
    if (!key || is_of_step(self->step, key) <= 0)
        goto end;
    where = where_of(key);
    name = where ? PyTuple_GetSlice(where, 0, 2) : NULL;
    calls = name ? PyObject_GetAttr(self->step, state->calls) : NULL;
    PyObject *planned = calls ? PyDict_GetItemWithError(calls, name) : NULL;
    PyObject *slot = planned ? PyTuple_GetItem(where, 2) : NULL;
    PyObject *form = slot ? form_of(self, record, slot) : NULL;
    order = form ? PyObject_GetAttr(record, state->order) : NULL;
    same = order ? PyObject_GetAttr(record, state->same_as) : NULL;
    if (!same)
        goto end;
    if (same != Py_None) {
        to = is_of_step(self->step, same) > 0 ? where_of(same) : NULL;
        PyObject *args[] = {planned, slot, form, order, to};
        done = to ? lay_link(self, args) : NULL;
    } else if (lying && PyTuple_Check(lying) && PyTuple_Size(lying) == 4) {
        PyObject *args[] = {planned, slot, where, form, order, PyTuple_GetItem(lying, 0),
                            PyTuple_GetItem(lying, 1), PyTuple_GetItem(lying, 2),
                            PyTuple_GetItem(lying, 3)};
        done = lay_value(self, args, 9);
    }
end:
    Py_XDECREF(key);
    Py_XDECREF(where);
    Py_XDECREF(name);
    Py_XDECREF(calls);
    Py_XDECREF(order);
    Py_XDECREF(same);
    Py_XDECREF(to);
    return done;
}

/* Lay down a call of which `told` tells; True where there is one of its name already. */
static PyObject *lay_told(Desk *self, PyObject *call, PyObject *told)
{
    if (is_of_step(self->step, call) <= 0)
        return NULL;
    PyObject *op = PyObject_GetAttr(call, state->op);
    PyObject *number = op ? PyObject_GetAttr(call, state->call) : NULL;
    PyObject *name = unseen(number ? PyTuple_Pack(2, op, number) : NULL);
    PyObject *order = name ? PyObject_GetAttr(call, state->order) : NULL;
    PyObject *calls = order ? PyObject_GetAttr(self->step, state->calls) : NULL, *done = NULL;
    if (calls && PyDict_GetItemWithError(calls, name)) {
        done = Py_NewRef(Py_True);
    } else if (calls && !PyErr_Occurred()) {
        PyObject *args[] = {self->step, name, call, told, order};
        done = lay_call(self, args);
    }
    Py_XDECREF(op);
    Py_XDECREF(number);
    Py_XDECREF(name);
    Py_XDECREF(order);
    Py_XDECREF(calls);
    return done;
}

/* Whether plain records are taken now. */
static int takes(Desk *self)
{
    return self->is_open && self->step && self->step != Py_None; /* another thread may end a step */
}

typedef PyObject *(*Laying)(Desk *, PyObject *, PyObject *);

/* Have `laying` lay something down while nothing else runs; NULL where it has not. */
static PyObject *laid_alone(Desk *self, Laying laying, PyObject *what, PyObject *with)
{
    int was_enabled = PyGC_Disable();
    PyObject *done = NULL, *error = PyObject_GetAttr(self->drain, state->error);
    if (error == Py_None && takes(self) && is_free(self) > 0)
        done = laying(self, what, with);
    Py_XDECREF(error);
    if (was_enabled)
        PyGC_Enable();
    return done;
}

/* None for what was not laid down, True for what was, and False where the writer must be woken by
   whoever called. Takes `done`. */
static PyObject *told_of(Desk *self, PyObject *done)
{
    int is_due = done ? must_wake(self) : 0;
    Py_XDECREF(done);
    if (PyErr_Occurred())
        return NULL;
    return Py_NewRef(!done ? Py_None : is_due ? Py_False : Py_True);
}

/* Lay down (call, told) at once. */
static PyObject *desk_told(PyObject *object, PyObject *const *args, Py_ssize_t num_args)
{
    Desk *self = (Desk *)object;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "lay_told: wrong number of arguments");
        return NULL;
    }
    return told_of(self, takes(self) ? laid_alone(self, lay_told, args[0], args[1]) : NULL);
}

/* Lay down (record, source) at once. The program's code may run where the source says how it lies,
   before anything has happened, and where it is told its digest. */
static PyObject *desk_record(PyObject *object, PyObject *const *args, Py_ssize_t num_args)
{
    Desk *self = (Desk *)object;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "lay_record: wrong number of arguments");
        return NULL;
    }
    if (!takes(self) || !self->forms)
        Py_RETURN_NONE;
    PyObject *lying = NULL, *source = args[1];
    if (source != Py_None && !(lying = PyObject_GetAttr(source, state->lying))) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return NULL;
        PyErr_Clear(); /* it does not say how it lies */
        Py_RETURN_NONE;
    }
    PyObject *done = laid_alone(self, lay_record, args[0], lying);
    Py_XDECREF(lying);
    if (done && done != Py_True && PyObject_SetAttr(source, state->found, done) < 0)
        Py_CLEAR(done);
    return told_of(self, done);
}

typedef enum { LAYS_CALL, LAYS_VALUE, LAYS_LINK } Which;

static PyObject *lay(PyObject *object, PyObject *const *args, Py_ssize_t num_args, Which which)
{
    Desk *self = (Desk *)object;
    int is_waiting = which == LAYS_VALUE && num_args == 6;
    if (num_args != (which == LAYS_VALUE ? 9 : 5) && !is_waiting) {
        PyErr_SetString(PyExc_TypeError, "lay: wrong number of arguments");
        return NULL;
    }
    if (!takes(self))
        Py_RETURN_NONE;
    int was_enabled = PyGC_Disable();
    int is_ours = is_free(self);
    PyObject *done = NULL;
    if (is_ours > 0)
        done = which == LAYS_CALL    ? lay_call(self, args)
               : which == LAYS_VALUE ? lay_value(self, args, num_args)
                                     : lay_link(self, args);
    if (was_enabled)
        PyGC_Enable();
    if (done && wake(self) < 0)
        Py_CLEAR(done);
    if (PyErr_Occurred())
        return NULL;
    return done ? done : Py_NewRef(Py_None);
}

static PyObject *desk_call(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    return lay(self, args, num_args, LAYS_CALL);
}

static PyObject *desk_value(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    return lay(self, args, num_args, LAYS_VALUE);
}

static PyObject *desk_link(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    return lay(self, args, num_args, LAYS_LINK);
}

#define FAST(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL

static PyMethodDef desk_methods[] = {
    {"prepare", desk_prepare, METH_VARARGS, "Be ready to lay records into a ring."},
    {"know", desk_know, METH_VARARGS, "Know records by (forms, names of what decides, full)."},
    {"lay_record", FAST(desk_record), "Lay down (record, source); None, or whether none must wake."},
    {"lay_told", FAST(desk_told), "Lay down (call, told); None, or whether none must wake."},
    {"leave", desk_leave, METH_NOARGS, "Let go of the ring's memory."},
    {"lay_call", FAST(desk_call), "Lay down (step, name, call, told, order); its CallPlan, or None."},
    {"lay_value", FAST(desk_value), "Lay down a value and its bytes; its digest, or None."},
    {"lay_link", FAST(desk_link), "Lay down (planned, slot, form, order, where); True, or None."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot positions_slots[] = {
    {Py_tp_members, positions_members}, {Py_tp_dealloc, free_plain},
    {Py_tp_doc, "Where a ring is in use."}, {0, NULL}};
static PyType_Slot filling_slots[] = {
    {Py_tp_members, filling_members}, {Py_tp_dealloc, free_plain},
    {Py_tp_doc, "How far a part is filled."}, {0, NULL}};
static PyType_Slot footprint_slots[] = {
    {Py_tp_members, footprint_members}, {Py_tp_dealloc, free_plain},
    {Py_tp_doc, "How much room a value takes."}, {0, NULL}};
static PyType_Slot desk_slots[] = {
    {Py_tp_members, desk_members}, {Py_tp_methods, desk_methods}, {Py_tp_dealloc, desk_free},
    {Py_tp_traverse, desk_traverse}, {Py_tp_clear, desk_clear},
    {Py_tp_doc, "Where records are laid into the ring."}, {0, NULL}};

#define PLAIN Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE

static PyType_Spec positions_spec = {"_desk.Positions", sizeof(Positions), 0, PLAIN,
                                     positions_slots};
static PyType_Spec filling_spec = {"_desk.Filling", sizeof(Filling), 0, PLAIN, filling_slots};
static PyType_Spec footprint_spec = {"_desk.Footprint", sizeof(Footprint), 0, PLAIN, footprint_slots};
static PyType_Spec desk_spec = {"_desk.Desk", sizeof(Desk), 0, PLAIN | Py_TPFLAGS_HAVE_GC,
                                desk_slots};

static PyObject *add_type(PyObject *of, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(of, name, type) < 0)
        Py_CLEAR(type);
    return type;
}

static int name_all(void)
{
    struct {
        PyObject **where;
        const char *name;
    } names[] = {
        {&state->plan, "plan"},     {&state->calls, "calls"},   {&state->slots, "slots"},
        {&state->number, "number"}, {&state->part, "part"},     {&state->forms, "forms"},
        {&state->prefix, "prefix"}, {&state->asleep, "asleep"}, {&state->nudge, "nudge"},
        {&state->locked, "locked"}, {&state->changes_lane, "changes_lane"},
        {&state->text, "text"},     {&state->nothing, ""},      {&state->key, "key"},
        {&state->model, "model"},   {&state->step, "step"},     {&state->op, "op"},
        {&state->call, "call"},     {&state->slot, "slot"},     {&state->order, "order"},
        {&state->kept, "kept"},     {&state->same_as, "same_as"}, {&state->stored, "stored"},
        {&state->lying, "lying"},   {&state->error, "error"},   {&state->found, "digest"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].where = PyUnicode_InternFromString(names[i].name)))
            return -1;
    for (int kind = 0; kind < 8; kind++)
        if (!(state->kinds[kind] = PyLong_FromLong(kind)))
            return -1;
    return 0;
}

static int set_up(PyObject *made)
{
    const uint16_t one = 1;
    if (*(const char *)&one != 1) {
        PyErr_SetString(PyExc_ImportError, "parts are little-endian, and this machine is not");
        return -1;
    }
    if (state) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    state = PyModule_GetState(made);
    state->positions = add_type(made, "Positions", &positions_spec);
    state->filling = add_type(made, "Filling", &filling_spec);
    state->footprint = add_type(made, "Footprint", &footprint_spec);
    state->desk = add_type(made, "Desk", &desk_spec);
    PyObject *functools = PyImport_ImportModule("functools");
    state->partial = functools ? PyObject_GetAttrString(functools, "partial") : NULL;
    Py_XDECREF(functools);
    if (!state->partial)
        return -1;
    return state->desk && state->footprint && state->filling && state->positions ? name_all() : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_desk", "Records laid into the ring.", sizeof(State), NULL,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__desk(void) { return PyModuleDef_Init(&module); }
