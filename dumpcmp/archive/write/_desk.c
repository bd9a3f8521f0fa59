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
#include "_entries.h"
#include "_fetch.h"
#include "_xxh3.h"

#define ALIGNMENT 64
#define LINK_NBYTES 128
#define TAIL_AT 24 /* where the ring's first page says which record is the oldest */
#define AT_ONCE (1 << 20) /* bytes in the ring that are worth waking the writer */

typedef unsigned long long Count;

typedef struct {
    PyObject_HEAD
    Count head, tail, used, reach, sequence;
    char wrapped, asked, asleep, failed;
} Positions;

typedef struct {
    PyObject_HEAD
    Count nonce, most_nbytes, nbytes, num_rows, num_calls;
    PyObject *part, *forms;
    char full;
} Filling;

typedef struct {
    PyObject_HEAD
    Count total, nbytes, prefix_nbytes, blocks;
} Footprint;

/* What is said of a call: its text, and where its group is and what that says, once it is known. */
typedef struct {
    PyObject_HEAD
    PyObject *text, *_path, *_described;
} Wording;

/* Where the value of a slot lies: the part and row, and what it is called there; NULL: what its own
   call says. */
typedef struct {
    PyObject *slot, *plan, *where;
    Count row;
} Held;

#define NUM_HELD 4 /* that lie with their call; most calls have no more */

/* Where a call is declared, and where its values lie: the last ones in `held`, others in a dict. */
typedef struct {
    PyObject_HEAD
    PyObject *call, *plan, *slots, *earlier;
    Count number;
    int num_held;
    Held held[NUM_HELD];
} CallPlace;

/* Where goes what comes next of a step. */
typedef struct {
    PyObject_HEAD
    PyObject *model, *number, *plan, *lanes, *calls;
    char changes_lane;
} StepPlace;

/* Records that are not written yet. */
typedef struct {
    PyObject_HEAD
    Entries entries;
} Pending;

/* Bytes of the ring that are being digested: a memoryview for each would take as long. */
typedef struct {
    PyObject_HEAD
    char *octets;
    Py_ssize_t nbytes;
} Span;

#define NUM_FACTS 9     /* that decide the form of a record, besides its slot */
#define NUM_FIELDS 10   /* of a call that are told, as schema.CALL_FIELDS names them */
#define PHASE 5         /* which of them that is */
#define NUM_REPEATED 7  /* the last of them, which many calls have in common */
#define NUM_KEPT 16     /* of forms, and of what calls have in common: the same come again */

typedef struct {
    PyObject *slot, *facts[NUM_FACTS], *form;
} KnownForm;

typedef struct {
    PyObject *facts[NUM_REPEATED], *json;
} Repeated;

/* The call that came last: most records are of the same one as the record before. */
typedef struct {
    PyObject *model, *step, *op, *call, *planned;
} LastCall;

typedef struct {
    PyObject_HEAD
    Count num_records, nbytes, most_links, before_room;
    char is_open, digests; /* `digests`: what is copied, in the same loop */
    PyObject *step;                                          /* that is being written */
    PyObject *ring, *pending, *drain, *locks, *digest, *hasher, *call_plan, *span;
    PyObject *forms, *full; /* by which records are known, see schema.form_key */
    PyObject *texts, *call_text, *repeated_json, *forward; /* by which calls are, see text_of */
    Py_ssize_t most_text, most_texts;
    Fetch of_record, of_key, of_call;
    KnownForm known[NUM_KEPT];
    Repeated repeated[NUM_KEPT];
    LastCall last;
    Py_buffer room;
} Desk;

typedef struct {
    PyObject *positions, *filling, *footprint, *desk, *partial; /* types */
    PyObject *wording, *call_place, *step_place, *span, *pending;
    PyObject *number, *nudge, *text, *model, *step, *lying,
        *op, *call, *found; /* the last is an attribute of a source: its digest */
} State;

/* Where the fields lie that are asked of a record, before what decides its form, and of a key. */
enum { KEY, ORDER, KEPT, SAME_AS, FACTS };
enum { MODEL, STEP, OP, NUMBER, SLOT };

static struct PyModuleDef module;
static State *state; /* of the only interpreter that may import it */

#define MEMBER(type, name, kind) {#name, kind, offsetof(type, name), 0, NULL}

static PyMemberDef positions_members[] = {
    MEMBER(Positions, head, T_ULONGLONG),     MEMBER(Positions, tail, T_ULONGLONG),
    MEMBER(Positions, used, T_ULONGLONG),     MEMBER(Positions, reach, T_ULONGLONG),
    MEMBER(Positions, sequence, T_ULONGLONG), MEMBER(Positions, wrapped, T_BOOL),
    MEMBER(Positions, asked, T_BOOL),         MEMBER(Positions, asleep, T_BOOL),
    MEMBER(Positions, failed, T_BOOL),        {NULL, 0, 0, 0, NULL},
};

static PyMemberDef filling_members[] = {
    MEMBER(Filling, nonce, T_ULONGLONG),     MEMBER(Filling, most_nbytes, T_ULONGLONG),
    MEMBER(Filling, nbytes, T_ULONGLONG),    MEMBER(Filling, num_rows, T_ULONGLONG),
    MEMBER(Filling, num_calls, T_ULONGLONG), MEMBER(Filling, full, T_BOOL),
    MEMBER(Filling, part, T_OBJECT_EX),      MEMBER(Filling, forms, T_OBJECT_EX),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef wording_members[] = {
    MEMBER(Wording, text, T_OBJECT_EX), MEMBER(Wording, _path, T_OBJECT_EX),
    MEMBER(Wording, _described, T_OBJECT), {NULL, 0, 0, 0, NULL},
};

static PyMemberDef call_members[] = {
    MEMBER(CallPlace, call, T_OBJECT_EX),    MEMBER(CallPlace, plan, T_OBJECT),
    MEMBER(CallPlace, earlier, T_OBJECT),    MEMBER(CallPlace, number, T_ULONGLONG),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef step_members[] = {
    MEMBER(StepPlace, model, T_OBJECT_EX),       MEMBER(StepPlace, number, T_OBJECT_EX),
    MEMBER(StepPlace, plan, T_OBJECT_EX),        MEMBER(StepPlace, lanes, T_OBJECT_EX),
    MEMBER(StepPlace, calls, T_OBJECT_EX),       MEMBER(StepPlace, changes_lane, T_BOOL),
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
    MEMBER(Desk, is_open, T_BOOL),          {NULL, 0, 0, 0, NULL},
};

static void free_plain(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* No circle leads through any of these: they know what they are laid into, and that not them. */
static void filling_free(PyObject *self)
{
    Py_CLEAR(((Filling *)self)->part);
    Py_CLEAR(((Filling *)self)->forms);
    free_plain(self);
}

static void wording_free(PyObject *self)
{
    Py_CLEAR(((Wording *)self)->text);
    Py_CLEAR(((Wording *)self)->_path);
    Py_CLEAR(((Wording *)self)->_described);
    free_plain(self);
}

static void drop_held(Held *held)
{
    Py_CLEAR(held->slot);
    Py_CLEAR(held->plan);
    Py_CLEAR(held->where);
}

/* A tuple or a dict that the garbage collector needs not look at: it is in no circle. There are
   several for each call, and to look at them all took a tenth of the time. */
static PyObject *unseen(PyObject *object)
{
    if (object)
        PyObject_GC_UnTrack(object);
    return object;
}

/* What the value of a slot is called, borrowed; NULL with an exception. */
static PyObject *name_held(CallPlace *planned, Held *held)
{
    if (held->where)
        return held->where;
    PyObject *op = planned->call ? PyObject_GetAttr(planned->call, state->op) : NULL;
    PyObject *call = op ? PyObject_GetAttr(planned->call, state->call) : NULL;
    if (call)
        held->where = unseen(PyTuple_Pack(3, op, call, held->slot));
    Py_XDECREF(op);
    Py_XDECREF(call);
    return held->where;
}

/* Have all slots in the dict; 0, or -1 with an exception. */
static int settle_slots(CallPlace *planned)
{
    if (!planned->slots && !(planned->slots = PyDict_New()))
        return -1;
    int done = 0;
    for (int i = 0; i < planned->num_held && done == 0; i++) {
        Held *held = &planned->held[i];
        PyObject *where = name_held(planned, held);
        PyObject *holding =
            where ? unseen(Py_BuildValue("(OKO)", held->plan, held->row, where)) : NULL;
        done = holding ? PyDict_SetItem(planned->slots, held->slot, holding) : -1;
        Py_XDECREF(holding);
    }
    while (planned->num_held && done == 0)
        drop_held(&planned->held[--planned->num_held]);
    unseen(planned->slots);
    return done;
}

/* Note where the value of a slot lies that is not there yet. `where` may be NULL. */
static int hold_slot(CallPlace *planned, PyObject *slot, PyObject *plan, PyObject *where, Count row)
{
    if (planned->num_held == NUM_HELD && settle_slots(planned) < 0)
        return -1;
    Held held = {Py_NewRef(slot), Py_NewRef(plan), Py_XNewRef(where), row};
    planned->held[planned->num_held++] = held;
    return 0;
}

static inline int is_same(PyObject *one, PyObject *other)
{
    return one == other || PyObject_RichCompareBool(one, other, Py_EQ) > 0;
}

/* Which of the slots that lie with the call it is; NULL where it is none of them. */
static Held *held_at(CallPlace *planned, PyObject *slot)
{
    for (int i = planned->num_held; i--;)
        if (is_same(planned->held[i].slot, slot))
            return &planned->held[i];
    return NULL;
}

/* Whether the call has a value of this slot; not 0 with an exception. */
static int has_slot(CallPlace *planned, PyObject *slot)
{
    return held_at(planned, slot) || PyErr_Occurred() ||
           (planned->slots && PyDict_Contains(planned->slots, slot));
}

/* Where the value of a slot lies, with new references but to the slot; 0 where there is none. */
static int find_slot(CallPlace *planned, PyObject *slot, Held *found)
{
    Held *held = held_at(planned, slot);
    PyObject *to = !held && planned->slots ? PyDict_GetItem(planned->slots, slot) : NULL;
    if (held && name_held(planned, held)) {
        found->plan = held->plan;
        found->where = held->where;
        found->row = held->row;
    } else if (to && PyTuple_Check(to) && PyTuple_Size(to) == 3) {
        found->plan = PyTuple_GetItem(to, 0);
        found->row = PyLong_AsUnsignedLongLong(PyTuple_GetItem(to, 1));
        found->where = PyTuple_GetItem(to, 2);
    }
    Py_XINCREF(found->plan);
    Py_XINCREF(found->where);
    return found->plan && PyObject_TypeCheck(found->plan, (PyTypeObject *)state->filling);
}

static PyObject *call_slots(PyObject *object, void *unused)
{
    (void)unused;
    CallPlace *self = (CallPlace *)object;
    return settle_slots(self) < 0 ? NULL : Py_NewRef(self->slots);
}

static int call_set_slots(PyObject *object, PyObject *slots, void *unused)
{
    (void)unused;
    CallPlace *self = (CallPlace *)object;
    if (!slots || !PyDict_Check(slots)) {
        PyErr_SetString(PyExc_TypeError, "desk: slots are a dict");
        return -1;
    }
    while (self->num_held)
        drop_held(&self->held[--self->num_held]);
    PyObject *before = self->slots;
    self->slots = Py_NewRef(slots);
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef call_getset[] = {
    {"slots", call_slots, call_set_slots, "Where its values lie, by slot.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void call_free(PyObject *self)
{
    CallPlace *planned = (CallPlace *)self;
    while (planned->num_held)
        drop_held(&planned->held[--planned->num_held]);
    Py_CLEAR(((CallPlace *)self)->call);
    Py_CLEAR(((CallPlace *)self)->plan);
    Py_CLEAR(((CallPlace *)self)->slots);
    Py_CLEAR(((CallPlace *)self)->earlier);
    free_plain(self);
}

static void step_free(PyObject *self)
{
    Py_CLEAR(((StepPlace *)self)->model);
    Py_CLEAR(((StepPlace *)self)->number);
    Py_CLEAR(((StepPlace *)self)->plan);
    Py_CLEAR(((StepPlace *)self)->lanes);
    Py_CLEAR(((StepPlace *)self)->calls);
    free_plain(self);
}

/* Forget what is kept of records and calls before. */
static void forget_known(Desk *self)
{
    CLEAR_EACH(self->known);
    CLEAR_EACH(self->repeated);
    CLEAR_EACH(self->last);
}

static int desk_traverse(PyObject *object, visitproc visit, void *arg)
{
    Desk *self = (Desk *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->step);
    Py_VISIT(self->ring);
    Py_VISIT(self->pending);
    Py_VISIT(self->drain);
    Py_VISIT(self->locks);
    Py_VISIT(self->digest);
    Py_VISIT(self->hasher);
    Py_VISIT(self->call_plan);
    Py_VISIT(self->forms);
    Py_VISIT(self->full);
    Py_VISIT(self->texts);
    Py_VISIT(self->call_text);
    Py_VISIT(self->repeated_json);
    Py_VISIT(self->forward);
    Py_VISIT(self->last.planned);
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
    Py_CLEAR(self->pending);
    Py_CLEAR(self->drain);
    Py_CLEAR(self->locks);
    Py_CLEAR(self->digest);
    Py_CLEAR(self->hasher);
    Py_CLEAR(self->call_plan);
    Py_CLEAR(self->span);
    Py_CLEAR(self->forms);
    Py_CLEAR(self->full);
    Py_CLEAR(self->texts);
    Py_CLEAR(self->call_text);
    Py_CLEAR(self->repeated_json);
    Py_CLEAR(self->forward);
    clear_fetch(&self->of_record);
    clear_fetch(&self->of_key);
    clear_fetch(&self->of_call);
    forget_known(self);
    return 0;
}

static PyObject *desk_step(PyObject *object, void *unused)
{
    (void)unused;
    PyObject *step = ((Desk *)object)->step;
    return Py_NewRef(step ? step : Py_None);
}

/* Have another step be written; of the one before nothing is kept. */
static int desk_set_step(PyObject *object, PyObject *step, void *unused)
{
    (void)unused;
    Desk *self = (Desk *)object;
    if (step && step != Py_None && !PyObject_TypeCheck(step, (PyTypeObject *)state->step_place)) {
        PyErr_SetString(PyExc_TypeError, "desk: no step");
        return -1;
    }
    PyObject *before = self->step;
    self->step = step && step != Py_None ? Py_NewRef(step) : NULL;
    CLEAR_EACH(self->last);
    Py_XDECREF(before);
    return 0;
}

static PyGetSetDef desk_getset[] = {
    {"step", desk_step, desk_set_step, "The step that is being written.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static void desk_free(PyObject *object)
{
    PyObject_GC_UnTrack(object);
    desk_clear(object);
    free_plain(object);
}

/* An object of a type without its __init__, all of it still empty. The collector is not shown it. */
static PyObject *blank(PyObject *object)
{
    PyTypeObject *type = (PyTypeObject *)object;
    PyObject *made = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (made && PyType_GetFlags(type) & Py_TPFLAGS_HAVE_GC)
        PyObject_GC_UnTrack(made);
    return made;
}

static Entries *entries_of(PyObject *object) { return &((Pending *)object)->entries; }

static PyObject *pending_append(PyObject *object, PyObject *told)
{
    if (!PyTuple_Check(told)) {
        PyErr_SetString(PyExc_TypeError, "pending: a record is told by a tuple");
        return NULL;
    }
    if (!has_room(entries_of(object)))
        return NULL;
    Entry entry = {0};
    entry.told = Py_NewRef(told);
    add_entry(entries_of(object), &entry);
    Py_RETURN_NONE;
}

static PyObject *pending_popleft(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!entries_of(object)->count) {
        PyErr_SetString(PyExc_IndexError, "pending: nothing is");
        return NULL;
    }
    Entry entry = take_entry(entries_of(object));
    PyObject *told = unseen(told_entry(&entry));
    drop_entry(&entry);
    return told;
}

static void drop_entries(Entries *all)
{
    while (all->count) {
        Entry entry = take_entry(all);
        drop_entry(&entry);
    }
}

static PyObject *pending_clear(PyObject *object, PyObject *unused)
{
    (void)unused;
    drop_entries(entries_of(object));
    Py_RETURN_NONE;
}

static Py_ssize_t pending_length(PyObject *object)
{
    return (Py_ssize_t)entries_of(object)->count;
}

static PyObject *pending_item(PyObject *object, Py_ssize_t which)
{
    if (which < 0 || (size_t)which >= entries_of(object)->count) {
        PyErr_SetString(PyExc_IndexError, "pending: there are not so many");
        return NULL;
    }
    return unseen(told_entry(entry_at(entries_of(object), (size_t)which)));
}

/* They themselves, for who finishes them. */
static PyObject *pending_entries(PyObject *object, void *unused)
{
    (void)unused;
    return PyCapsule_New(entries_of(object), ENTRIES, NULL);
}

static void pending_free(PyObject *object)
{
    drop_entries(entries_of(object));
    PyMem_Free(entries_of(object)->entries);
    free_plain(object);
}

static PyMethodDef pending_methods[] = {
    {"append", pending_append, METH_O, "Add a record, which a tuple tells of."},
    {"popleft", pending_popleft, METH_NOARGS, "Take the oldest."},
    {"clear", pending_clear, METH_NOARGS, "Forget them all."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pending_getset[] = {
    {"entries", pending_entries, NULL, "They themselves, for who finishes them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static int span_buffer(PyObject *object, Py_buffer *view, int flags)
{
    Span *self = (Span *)object;
    return PyBuffer_FillInfo(view, object, self->octets, self->nbytes, 1, flags);
}

/* The digest of bytes of the ring, less than LONG of them, so that nobody else runs meanwhile. */
static PyObject *digest_of(Desk *self, char *octets, Py_ssize_t nbytes)
{
    Span *span = (Span *)self->span;
    span->octets = octets;
    span->nbytes = nbytes;
    PyObject *found = PyObject_CallFunctionObjArgs(self->digest, self->span, NULL);
    span->nbytes = 0;
    return found;
}

/* Whether digests that are taken here are those that xxhash gives, of lengths of every kind. */
static int agrees(Desk *self)
{
    static const Py_ssize_t lengths[] = {SHORTEST, 256, 257, 1024, 1025, 1088, 1089, 2048, 3001};
    char from[3001], to[3001], digits[DIGEST_NBYTES + 1] = "";
    int agreed = has_vectors();
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (char)(i * 37 + (i >> 7));
    for (size_t i = 0; agreed && i < sizeof lengths / sizeof *lengths; i++) {
        copy_with_digest(to, from, (size_t)lengths[i], digits);
        PyObject *expected = digest_of(self, to, lengths[i]);
        agreed = expected && PyUnicode_Check(expected) &&
                 !PyUnicode_CompareWithASCIIString(expected, digits) &&
                 !memcmp(to, from, (size_t)lengths[i]);
        Py_XDECREF(expected);
    }
    PyErr_Clear();
    return agreed;
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
    if (!PyType_Check(call_plan) || !PyType_IsSubtype((PyTypeObject *)call_plan,
                                                     (PyTypeObject *)state->call_place)) {
        PyErr_SetString(PyExc_TypeError, "prepare: no type of calls");
        return NULL;
    }
    PyObject *pending = PyObject_GetAttrString(drain, "pending");
    if (pending && Py_TYPE(pending) != (PyTypeObject *)state->pending) {
        PyErr_SetString(PyExc_TypeError, "prepare: nothing that takes records");
        Py_CLEAR(pending);
    }
    if (!pending || PyObject_GetBuffer(room, &self->room, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(pending);
        return NULL;
    }
    self->span = blank(state->span);
    if (!self->span) {
        Py_DECREF(pending);
        return NULL;
    }
    self->ring = Py_NewRef(ring);
    self->pending = pending;
    self->locks = Py_NewRef(locks);
    self->drain = Py_NewRef(drain);
    self->digest = Py_NewRef(digest);
    self->hasher = Py_NewRef(hasher);
    self->call_plan = Py_NewRef(call_plan);
    self->most_links = most_links;
    self->before_room = before_room;
    self->digests = (char)agrees(self);
    self->is_open = 1;
    Py_RETURN_NONE;
}

/* Know records of the class (Record, Key, names of its Key, names of what is asked of a record, names
   of what decides its form), whose forms are in (forms), if they are kept (in full). */
static PyObject *desk_know(PyObject *object, PyObject *args)
{
    Desk *self = (Desk *)object;
    PyObject *record, *key, *key_names, *names, *facts, *forms, *full;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O", &PyType_Type, &record, &PyType_Type, &key,
                          &PyTuple_Type, &key_names, &PyTuple_Type, &names, &PyTuple_Type, &facts,
                          &PyDict_Type, &forms, &full))
        return NULL;
    if (PyTuple_Size(key_names) != SLOT + 1 || PyTuple_Size(names) != FACTS ||
        PyTuple_Size(facts) != NUM_FACTS) {
        PyErr_SetString(PyExc_ValueError, "know: other names than are asked for");
        return NULL;
    }
    forget_known(self);
    clear_fetch(&self->of_record);
    clear_fetch(&self->of_key);
    if (extend_fetch(&self->of_key, key, key_names) < 0 || end_fetch(&self->of_key, key) < 0 ||
        extend_fetch(&self->of_record, record, names) < 0 ||
        extend_fetch(&self->of_record, record, facts) < 0 || end_fetch(&self->of_record, record) < 0)
        return NULL;
    Py_XDECREF(self->forms);
    self->forms = Py_NewRef(forms);
    Py_XDECREF(self->full);
    self->full = Py_NewRef(full);
    Py_RETURN_NONE;
}

/* Know calls of the class (Call, CALL_FIELDS) by (texts, at most so many, of at most so many bytes),
   which are objects of (CallText), and make them by (way to write what calls have in common); most
   are (forward). */
static PyObject *desk_tell(PyObject *object, PyObject *args)
{
    Desk *self = (Desk *)object;
    PyObject *call, *names, *texts, *call_text, *repeated_json, *forward;
    Py_ssize_t most_texts, most_text;
    if (!PyArg_ParseTuple(args, "O!O!O!nnO!OO", &PyType_Type, &call, &PyTuple_Type, &names,
                          &PyDict_Type, &texts, &most_texts, &most_text, &PyType_Type, &call_text,
                          &repeated_json, &forward))
        return NULL;
    if (PyTuple_Size(names) != NUM_FIELDS ||
        !PyType_IsSubtype((PyTypeObject *)call_text, (PyTypeObject *)state->wording) ||
        PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, PHASE), "phase")) {
        PyErr_SetString(PyExc_ValueError, "tell: other names than are asked for");
        return NULL;
    }
    forget_known(self);
    clear_fetch(&self->of_call);
    if (extend_fetch(&self->of_call, call, names) < 0 || end_fetch(&self->of_call, call) < 0)
        return NULL;
    Py_XDECREF(self->texts);
    self->texts = Py_NewRef(texts);
    Py_XDECREF(self->call_text);
    self->call_text = Py_NewRef(call_text);
    Py_XDECREF(self->repeated_json);
    self->repeated_json = Py_NewRef(repeated_json);
    Py_XDECREF(self->forward);
    self->forward = Py_NewRef(forward);
    self->most_texts = most_texts;
    self->most_text = most_text;
    Py_RETURN_NONE;
}

/* Let go of the ring's memory. */
static PyObject *desk_leave(PyObject *object, PyObject *unused)
{
    (void)unused;
    Desk *self = (Desk *)object;
    self->is_open = 0;
    forget_known(self);
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

/* Write a number in digits; gives where they end. */
static char *write_digits(char *at, Count number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *at++ = digits[--count];
    return at;
}

/* Where `nbytes` can lie behind the last record, if the writer can be told of them; an empty ring
   begins again at its start, and says so where whoever finds it after a kill looks. */
static char *place_for(Desk *self, Count nbytes)
{
    Positions *ring = (Positions *)self->ring;
    if (!self->is_open || !self->room.buf || !has_room(&((Pending *)self->pending)->entries))
        return NULL;
    if (!ring->used && !ring->wrapped && ring->head) {
        uint64_t tail[2] = {0, ring->sequence};
        ring->head = ring->tail = 0;
        memcpy((char *)self->room.buf - self->before_room + TAIL_AT, tail, sizeof tail);
    }
    Count end = ring->wrapped ? ring->tail : ring->reach;
    return end < ring->head + nbytes ? NULL : (char *)self->room.buf + ring->head;
}

/* A tuple of `count` objects, all of which it takes, be they NULL; the collector is not shown it. */
static PyObject *tuple_of(PyObject **objects, Py_ssize_t count)
{
    PyObject *made = unseen(PyTuple_New(count));
    for (Py_ssize_t i = 0; i < count; i++) {
        if (made && objects[i]) {
            PyTuple_SetItem(made, i, objects[i]);
        } else {
            Py_XDECREF(objects[i]);
            Py_CLEAR(made);
        }
    }
    return made;
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

/* Hand the record on, which is complete, and which `entry` tells of; takes its objects. */
static void publish(Desk *self, const Entry *entry, Count nbytes)
{
    Positions *ring = (Positions *)self->ring;
    add_entry(&((Pending *)self->pending)->entries, entry);
    ring->sequence++;
    ring->head += nbytes;
    ring->used += nbytes;
}

/* The beginning of what is told of a record at `place`. */
static Entry entry_of(Desk *self, Filling *plan, int kind, char *place, Py_ssize_t total)
{
    Entry entry = {NULL, Py_NewRef(plan->part), NULL, (uint32_t)kind, 0, 0,
                   place - (char *)self->room.buf, total, 0, {{0}}};
    return entry;
}

/* Whether the writer sleeps, or has much to do, and was not woken yet. */
static int must_wake(Desk *self)
{
    Positions *ring = (Positions *)self->ring;
    return !ring->asked && (ring->asleep || ring->used > AT_ONCE);
}

/* Wake the writer where that is due. Code of Python runs here. */
static int wake(Desk *self)
{
    if (!must_wake(self))
        return 0;
    ((Positions *)self->ring)->asked = 1;
    PyObject *nudge = PyObject_GetAttr(self->drain, state->nudge);
    PyObject *done = nudge ? PyObject_CallNoArgs(nudge) : NULL;
    Py_XDECREF(nudge);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* The part that comes next of the step, a new reference; NULL without an exception where `take`
   has more to do than to use it. */
static Filling *part_of(PyObject *object)
{
    StepPlace *step = (StepPlace *)object;
    PyObject *plan = step->changes_lane ? NULL : step->plan;
    if (!plan || !PyObject_TypeCheck(plan, (PyTypeObject *)state->filling))
        return NULL;
    Filling *filling = (Filling *)plan;
    if (filling->full || !filling->part || !filling->forms || !PyDict_Check(filling->forms))
        return NULL;
    return (Filling *)Py_NewRef(plan);
}

static Count number_in(PyObject *object)
{
    Count number = object ? PyLong_AsUnsignedLongLong(object) : 0;
    Py_XDECREF(object);
    return number;
}

/* The call in the part, where it has the next number; a new reference. */
static PyObject *planned_in(Desk *self, PyObject *call, Filling *plan)
{
    CallPlace *planned = (CallPlace *)blank(self->call_plan);
    if (!planned)
        return NULL;
    planned->call = Py_NewRef(call);
    planned->plan = Py_NewRef((PyObject *)plan);
    planned->number = plan->num_calls;
    return (PyObject *)planned;
}

/* Lay down a call of (step, name, call, told, order); its CallPlan, or None. */
static PyObject *lay_call(Desk *self, PyObject *const *args)
{
    PyObject *step = args[0], *name = args[1], *call = args[2], *told = args[3];
    Count order = PyLong_AsUnsignedLongLong(args[4]);
    PyObject *calls = self->step ? ((StepPlace *)self->step)->calls : NULL;
    if (self->step != step || PyErr_Occurred() || !calls || !PyDict_Check(calls) ||
        !PyObject_TypeCheck(told, (PyTypeObject *)state->wording) || !((Wording *)told)->text)
        return NULL;
    Filling *plan = part_of(step);
    PyObject *planned = NULL;
    Py_ssize_t length;
    char *text;
    if (!plan || PyDict_Contains(calls, name) ||
        PyBytes_AsStringAndSize(((Wording *)told)->text, &text, &length) < 0)
        goto end;
    Py_ssize_t total = ALIGNMENT + ((length + ALIGNMENT - 1) & -ALIGNMENT);
    char *place = place_for(self, (Count)total);
    if (!place)
        goto end;
    planned = planned_in(self, call, plan);
    if (!planned || PyDict_SetItem(calls, name, planned) < 0) {
        Py_CLEAR(planned);
        goto end;
    }
    Fields fields = {CALL, (uint16_t)(total / ALIGNMENT), (uint32_t)plan->num_calls, 0, 0,
                     plan->nonce, 0, order};
    memcpy(place + ALIGNMENT, text, (size_t)length);
    memset(place + ALIGNMENT + length, ' ', (size_t)(total - ALIGNMENT - length));
    write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
    Entry entry = entry_of(self, plan, CALL, place, total);
    entry.what = Py_NewRef(call);
    entry.wording = Py_NewRef(told);
    publish(self, &entry, (Count)total);
    plan->num_calls++;
    plan->full = plan->num_calls >= self->most_links / 2;
    plan->nbytes += (Count)total;
end:
    Py_XDECREF((PyObject *)plan);
    return planned;
}

/* Declare the form in the part, of which there is none like it yet; 0 where it cannot be now. */
static int declare_form(Desk *self, Filling *plan, PyObject *forms, PyObject *form)
{
    PyObject *text = PyObject_GetAttr(form, state->text);
    PyObject *number = PyLong_FromSsize_t(PyDict_Size(forms));
    char *content, *place = NULL;
    Py_ssize_t total = 0;
    if (text && number && PyBytes_AsStringAndSize(text, &content, &total) == 0)
        place = place_for(self, (Count)total);
    int done = place && PyDict_SetItem(forms, form, number) == 0;
    if (done) {
        Fields fields = {FORM, (uint16_t)(total / ALIGNMENT), 0,
                         (uint32_t)PyLong_AsUnsignedLong(number), 0, plan->nonce, 0, 0};
        memcpy(place + ALIGNMENT, content + ALIGNMENT, (size_t)total - ALIGNMENT);
        write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
        Entry entry = entry_of(self, plan, FORM, place, total);
        entry.what = Py_NewRef(form);
        publish(self, &entry, (Count)total);
        plan->nbytes += (Count)total;
    }
    Py_XDECREF(number);
    Py_XDECREF(text);
    return done;
}

typedef struct {
    Filling *plan; /* owned */
    CallPlace *planned;
    Footprint *form;
    Count form_number, row;
} Row;

static void forget(Row *row)
{
    Py_CLEAR(row->plan);
}

/* What the next row of the part needs, of a call that is declared there; 0 where it is not. */
static int begin_row(Desk *self, PyObject *planned, PyObject *slot, PyObject *form, Row *row)
{
    memset(row, 0, sizeof *row);
    if (!self->step || !PyObject_TypeCheck(form, (PyTypeObject *)state->footprint) ||
        !PyObject_TypeCheck(planned, (PyTypeObject *)state->call_place))
        return 0;
    row->plan = part_of(self->step);
    row->planned = (CallPlace *)planned;
    if (!row->plan || row->planned->plan != (PyObject *)row->plan || has_slot(row->planned, slot))
        return 0;
    PyObject *forms = row->plan->forms, *numbered = PyDict_GetItemWithError(forms, form);
    if (!numbered && !PyErr_Occurred() && declare_form(self, row->plan, forms, form))
        numbered = PyDict_GetItemWithError(forms, form);
    if (!numbered)
        return 0;
    row->form_number = PyLong_AsUnsignedLongLong(numbered);
    row->form = (Footprint *)form;
    row->row = row->plan->num_rows;
    return !PyErr_Occurred();
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
    Fields fields = {(uint16_t)kind,   (uint16_t)blocks, (uint32_t)row->planned->number,
                     (uint32_t)row->form_number, (uint32_t)row->row, row->plan->nonce,
                     nbytes, order};
    return fields;
}

/* What is told of the row that lies at `place`; takes no objects but its own. */
static Entry entry_of_row(Desk *self, const Row *row, int kind, char *place, Count total, Count order)
{
    Entry entry = entry_of(self, row->plan, kind, place, (Py_ssize_t)total);
    entry.what = Py_NewRef((PyObject *)row->form);
    entry.call = (uint32_t)row->planned->number;
    entry.number = (uint32_t)row->form_number;
    entry.order = order;
    return entry;
}

/* Tell of a value whose bytes are there; 0 where its digest is none. */
static int tell_value(Desk *self, const Row *row, char *place, Count order, PyObject *digest,
                      Entry *entry)
{
    Py_ssize_t length = 0;
    const char *digits = PyUnicode_AsUTF8AndSize(digest, &length);
    if (!digits || length != DIGEST_NBYTES)
        return 0;
    *entry = entry_of_row(self, row, VALUE, place, row->form->total, order);
    memcpy(entry->digest, digits, DIGEST_NBYTES);
    return 1;
}

/* Tell of a value whose bytes are there once `wait` was called; 0 with an exception. */
static int tell_waiting(Desk *self, const Row *row, char *place, Count order, PyObject *wait,
                        Entry *entry)
{
    entry->told = unseen(Py_BuildValue(
        "(iOnKKOKKOs)", VALUE, row->plan->part, place - (char *)self->room.buf, row->form->total,
        row->planned->number, (PyObject *)row->form, row->form_number, order, wait, ""));
    return entry->told != NULL;
}

/* Copy the elements of (address, itemsize, shape, stride) to where they belong; their digest, or NULL
   where they are not those of the form. */
static PyObject *copied(Desk *self, const Footprint *form, char *to, PyObject *const *lying)
{
    Dim dims[MOST_DIMS];
    int size = (int)PyLong_AsLong(lying[1]);
    int num_dims = read_dims(lying[2], lying[3], size, dims);
    Count nbytes = (Count)size;
    for (int i = 0; i < num_dims; i++)
        nbytes *= (Count)dims[i].count;
    int known = size == 1 || size == 2 || size == 4 || size == 8 || size == 16;
    if (num_dims <= 0 || !known || nbytes != form->nbytes)
        return NULL;
    const char *from = (const char *)(uintptr_t)PyLong_AsUnsignedLongLong(lying[0]);
    if (PyErr_Occurred())
        return NULL;
    if (self->digests && num_dims == 1 && dims[0].step == size && nbytes >= SHORTEST) {
        char digits[DIGEST_NBYTES];
        copy_with_digest(to, from, (size_t)nbytes, digits);
        return PyUnicode_FromStringAndSize(digits, DIGEST_NBYTES);
    }
    if (nbytes < LONG) {
        copy_all(to, from, dims, num_dims, size);
        return digest_of(self, to, (Py_ssize_t)nbytes);
    }
    return has_rows(dims, num_dims, size)
               ? copy_digested(self->hasher, to, from, dims, num_dims, size)
               : NULL;
}

/* What fills the room at `to` with the bytes of the form later. */
static PyObject *filled_later(const Footprint *form, char *to, PyObject *fill)
{
    PyObject *later = PyMemoryView_FromMemory(to, (Py_ssize_t)form->nbytes, PyBUF_WRITE);
    PyObject *wait = later ? PyObject_CallFunctionObjArgs(state->partial, fill, later, NULL) : NULL;
    Py_XDECREF(later);
    return wait;
}

/* Lay down a value of (planned, slot, where, form, order, then address, itemsize, shape, stride, or
   what fills a room with the bytes later); the digest, or True where they come later, or None.
   `where` may be NULL. */
static PyObject *lay_value(Desk *self, PyObject *const *args, Py_ssize_t num_args)
{
    PyObject *planned = args[0], *slot = args[1];
    Row row;
    PyObject *digest = NULL;
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
    Count order = PyLong_AsUnsignedLongLong(args[4]);
    Entry entry = {0};
    int is_told = 0;
    if (waits) {
        PyObject *wait = filled_later(form, to, args[5]);
        is_told = wait && tell_waiting(self, &row, place, order, wait, &entry);
        Py_XDECREF(wait);
        digest = is_told ? Py_NewRef(Py_True) : NULL;
    } else {
        digest = copied(self, form, to, args + 5);
        is_told = digest && tell_value(self, &row, place, order, digest, &entry);
    }
    if (!is_told || PyErr_Occurred() ||
        hold_slot(row.planned, slot, (PyObject *)row.plan, args[2], row.row) < 0) {
        drop_entry(&entry);
        Py_CLEAR(digest);
        goto end;
    }
    Fields fields = fields_of(&row, VALUE, form->blocks, form->nbytes, order);
    write_fields(place, &fields, waits ? "dcW1" : "dcR1", ((Positions *)self->ring)->sequence);
    publish(self, &entry, form->total);
    count(self, &row, form->total);
    self->nbytes += form->nbytes;
end:
    forget(&row);
    return digest;
}

/* Where the value lies that is called `where`, as `held` has it, with new references; 0 where it is
   not known. */
static int holding_of(PyObject *step, PyObject *where, Held *held)
{
    PyObject *calls = ((StepPlace *)step)->calls;
    PyObject *name = calls ? PyTuple_GetSlice(where, 0, 2) : NULL;
    PyObject *call = name ? PyDict_GetItem(calls, name) : NULL;
    Py_XDECREF(name);
    if (!call || !PyObject_TypeCheck(call, (PyTypeObject *)state->call_place))
        return 0;
    return find_slot((CallPlace *)call, PyTuple_GetItem(where, 2), held);
}

/* Write "[part,row]", which takes 43 bytes at most: to format it took as long as all else. */
static void write_pair(char *at, Count part, Count row)
{
    *at++ = '[';
    at = write_digits(at, part);
    *at++ = ',';
    at = write_digits(at, row);
    *at = ']';
}

/* Lay down a link of (planned, slot, form, order, where); True, or None. */
static PyObject *lay_link(Desk *self, PyObject *const *args)
{
    PyObject *planned = args[0], *slot = args[1], *form = args[2], *where = args[4];
    Row row;
    Held to = {NULL, NULL, NULL, 0};
    PyObject *holder = NULL, *done = NULL;
    if (!begin_row(self, planned, slot, form, &row))
        goto end;
    char *place = place_for(self, LINK_NBYTES);
    if (place && PyTuple_Check(where) && holding_of(self->step, where, &to))
        holder = ((Filling *)to.plan)->part;
    if (!holder)
        goto end;
    Count part = number_in(PyObject_GetAttr(holder, state->number));
    Count order = PyLong_AsUnsignedLongLong(args[3]);
    if (PyErr_Occurred() || hold_slot(row.planned, slot, to.plan, to.where, to.row) < 0)
        goto end;
    Fields fields = fields_of(&row, LINK, LINK_NBYTES / ALIGNMENT, 0, order);
    memset(place + ALIGNMENT, ' ', ALIGNMENT);
    write_pair(place + ALIGNMENT, part, to.row);
    write_fields(place, &fields, "dcR1", ((Positions *)self->ring)->sequence);
    Entry entry = entry_of_row(self, &row, LINK, place, LINK_NBYTES, order);
    entry.to.holder = Py_NewRef(holder);
    entry.to.first = Py_NewRef(to.where);
    entry.to.row = to.row;
    publish(self, &entry, LINK_NBYTES);
    count(self, &row, LINK_NBYTES);
    done = Py_NewRef(Py_True);
end:
    forget(&row);
    drop_held(&to);
    return done;
}

/* Whether what is written now is the step `number` of `model`. */
static int is_of_step(Desk *self, PyObject *model, PyObject *number)
{
    StepPlace *step = (StepPlace *)self->step;
    return step->number && step->model && step->calls && PyDict_Check(step->calls) &&
           PyObject_RichCompareBool(step->number, number, Py_EQ) > 0 &&
           PyObject_RichCompareBool(step->model, model, Py_EQ) > 0;
}

/* The call that a Key names by `named`, borrowed; NULL where it has not come. */
static PyObject *call_of(Desk *self, PyObject **named)
{
    LastCall *last = &self->last;
    if (last->planned && last->model == named[MODEL] && last->step == named[STEP] &&
        last->op == named[OP] && last->call == named[NUMBER])
        return last->planned;
    if (!is_of_step(self, named[MODEL], named[STEP]))
        return NULL;
    PyObject *name = unseen(PyTuple_Pack(2, named[OP], named[NUMBER]));
    PyObject *calls = ((StepPlace *)self->step)->calls;
    PyObject *planned = name ? PyDict_GetItemWithError(calls, name) : NULL;
    Py_XDECREF(name);
    if (!planned)
        return NULL;
    LastCall now = {Py_NewRef(named[MODEL]), Py_NewRef(named[STEP]), Py_NewRef(named[OP]),
                    Py_NewRef(named[NUMBER]), Py_NewRef(planned)};
    LastCall before = *last;
    *last = now;
    CLEAR_EACH(before);
    return planned;
}

/* Where a form of this slot would be kept. Most records have a text of their own for it. */
static KnownForm *kept_for(Desk *self, PyObject *slot)
{
    Py_ssize_t length = PyUnicode_Check(slot) ? PyUnicode_GetLength(slot) : 0;
    Py_UCS4 last = length > 0 ? PyUnicode_ReadChar(slot, length - 1) : 0;
    return &self->known[((size_t)length + last) % NUM_KEPT];
}

/* The form of a record, borrowed; NULL where none like it has come. One that is not kept in full,
   or stands for something else, is not known here: to hash it would run Python. */
static PyObject *form_of(Desk *self, PyObject *record, PyObject *slot)
{
    PyObject *kept = fetched(&self->of_record, record, KEPT), *facts[NUM_FACTS];
    int is_full = kept == self->full;
    Py_XDECREF(kept);
    if (!is_full || !fetch_all(&self->of_record, record, FACTS, NUM_FACTS, facts))
        return NULL;
    KnownForm *known = kept_for(self, slot);
    PyObject *form = known->slot && is_same(slot, known->slot) ? known->form : NULL;
    for (int i = 0; form && i < NUM_FACTS; i++)
        if (!is_same(facts[i], known->facts[i]))
            form = NULL;
    if (form || PyErr_Occurred()) {
        CLEAR_EACH(facts);
        return form;
    }
    int is_plain = facts[NUM_FACTS - 1] == Py_None; /* what is stored in its place */
    PyObject *told = is_plain ? PyTuple_New(NUM_FACTS + 1) : NULL;
    for (int i = 0; told && i < NUM_FACTS; i++)
        PyTuple_SetItem(told, i + 1, Py_NewRef(facts[i]));
    if (told)
        PyTuple_SetItem(told, 0, Py_NewRef(slot));
    PyObject *known_by = told ? PyTuple_Pack(2, told, Py_True) : NULL;
    form = known_by ? PyDict_GetItemWithError(self->forms, known_by) : NULL;
    Py_XDECREF(known_by);
    Py_XDECREF(told);
    if (!form) {
        CLEAR_EACH(facts);
        return NULL;
    }
    KnownForm before = *known;
    known->slot = Py_NewRef(slot);
    memcpy(known->facts, facts, sizeof facts);
    known->form = Py_NewRef(form);
    CLEAR_EACH(before);
    return form;
}

/* Lay down a link to the value that `same` names. */
static PyObject *lay_same(Desk *self, PyObject *planned, PyObject *slot, PyObject *form,
                          PyObject *order, PyObject *same)
{
    PyObject *first[SLOT + 1], *done = NULL;
    if (!fetch_all(&self->of_key, same, MODEL, SLOT + 1, first))
        return NULL;
    if (is_of_step(self, first[MODEL], first[STEP])) {
        PyObject *to = unseen(PyTuple_Pack(3, first[OP], first[NUMBER], first[SLOT]));
        PyObject *args[] = {planned, slot, form, order, to};
        done = to ? lay_link(self, args) : NULL;
        Py_XDECREF(to);
    }
    CLEAR_EACH(first);
    return done;
}

/* Lay down a Record, whose elements are `lying` there, or which is a link; like lay_value. */
static PyObject *lay_record(Desk *self, PyObject *record, PyObject *lying)
{
    PyObject *named[SLOT + 1], *order = NULL, *same = NULL, *done = NULL;
    PyObject *key = fetched(&self->of_record, record, KEY);
    int is_named = key && fetch_all(&self->of_key, key, MODEL, SLOT + 1, named);
    Py_XDECREF(key);
    if (!is_named)
        return NULL;
    PyObject *planned = call_of(self, named), *slot = named[SLOT];
    Py_XINCREF(planned);
    PyObject *form = planned ? form_of(self, record, slot) : NULL;
    Py_XINCREF(form);
    order = form ? fetched(&self->of_record, record, ORDER) : NULL;
    same = order ? fetched(&self->of_record, record, SAME_AS) : NULL;
    if (same && same != Py_None) {
        done = lay_same(self, planned, slot, form, order, same);
    } else if (same && lying && PyTuple_Check(lying) && PyTuple_Size(lying) == 4) {
        PyObject *args[] = {planned, slot, NULL, form, order, PyTuple_GetItem(lying, 0),
                            PyTuple_GetItem(lying, 1), PyTuple_GetItem(lying, 2),
                            PyTuple_GetItem(lying, 3)};
        done = lay_value(self, args, 9);
    }
    CLEAR_EACH(named);
    Py_XDECREF(planned);
    Py_XDECREF(form);
    Py_XDECREF(order);
    Py_XDECREF(same);
    return done;
}

/* What calls have in common, as JSON up to the end of the list; a text, borrowed, or NULL. */
static PyObject *repeated_of(Desk *self, PyObject **facts)
{
    uintptr_t mixed = 0;
    for (int i = 0; i < NUM_REPEATED; i++)
        mixed += (uintptr_t)facts[i] >> 4;
    Repeated *kept = &self->repeated[mixed % NUM_KEPT];
    if (kept->json && !memcmp(kept->facts, facts, sizeof kept->facts))
        return kept->json;
    Repeated now, before;
    PyObject *args = PyTuple_New(NUM_REPEATED);
    for (int i = 0; args && i < NUM_REPEATED; i++)
        PyTuple_SetItem(args, i, Py_NewRef(facts[i]));
    now.json = args ? PyObject_CallObject(self->repeated_json, args) : NULL;
    Py_XDECREF(args);
    if (!now.json)
        return NULL;
    for (int i = 0; i < NUM_REPEATED; i++)
        now.facts[i] = Py_NewRef(facts[i]);
    before = *kept;
    *kept = now;
    CLEAR_EACH(before);
    return now.json;
}

/* Whether JSON has a text as it is. */
static int is_bare(const char *text, Py_ssize_t length)
{
    for (Py_ssize_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\')
            return 0;
    return 1;
}

static char *write_number(char *at, long long number)
{
    if (number < 0)
        *at++ = '-';
    return write_digits(at, number < 0 ? 0 - (Count)number : (Count)number);
}

/* Write both numbers of a call, and what stands around them, in 44 bytes at most; gives how many. */
static Py_ssize_t write_numbers(char *to, long long call, long long order)
{
    char *at = to;
    *at++ = '"';
    *at++ = ',';
    at = write_number(at, call);
    *at++ = ',';
    at = write_number(at, order);
    *at++ = ',';
    return at - to;
}

/* What is said of a call whose `fields` these are, as CallText has it, a new reference; NULL where
   that is long or needs care. */
static PyObject *worded(Desk *self, PyObject **fields)
{
    Py_ssize_t op_nbytes = 0, nbytes = 0;
    long long call, order;
    int is_plain = PyUnicode_Check(fields[0]) && PyLong_CheckExact(fields[1]) &&
                   PyLong_CheckExact(fields[2]) && PyUnicode_Check(fields[6]) &&
                   PyUnicode_GetLength(fields[6]) <= self->most_text;
    const char *op = is_plain ? PyUnicode_AsUTF8AndSize(fields[0], &op_nbytes) : NULL;
    call = op ? PyLong_AsLongLong(fields[1]) : 0;
    order = op ? PyLong_AsLongLong(fields[2]) : 0;
    if (!op || PyErr_Occurred() || !is_bare(op, op_nbytes)) {
        PyErr_Clear(); /* half a character, or a number out of bounds */
        return NULL;
    }
    PyObject *json = repeated_of(self, fields + NUM_FIELDS - NUM_REPEATED);
    const char *rest = json ? PyUnicode_AsUTF8AndSize(json, &nbytes) : NULL;
    char numbers[64];
    Py_ssize_t length = write_numbers(numbers, call, order);
    Py_ssize_t total = 2 + op_nbytes + length + nbytes;
    if (!rest || total > self->most_text)
        return NULL;
    Wording *told = (Wording *)blank(self->call_text);
    if (!told)
        return NULL;
    told->text = PyBytes_FromStringAndSize(NULL, total);
    told->_path = PyTuple_New(0);
    if (!told->text || !told->_path) {
        Py_DECREF(told);
        return NULL;
    }
    char *to = PyBytes_AsString(told->text);
    memcpy(to, "[\"", 2);
    memcpy(to + 2, op, (size_t)op_nbytes);
    memcpy(to + 2 + op_nbytes, numbers, (size_t)length);
    memcpy(to + 2 + op_nbytes + length, rest, (size_t)nbytes);
    return (PyObject *)told;
}

/* What is said of a call, as Staging.text_of has it: a new reference; NULL where that needs care. */
static PyObject *text_of(Desk *self, PyObject *call)
{
    PyObject *fields[NUM_FIELDS], *facts[NUM_FIELDS - 1];
    if (!fetch_all(&self->of_call, call, 0, NUM_FIELDS, fields))
        return NULL;
    for (int i = 0; i < NUM_FIELDS - 1; i++)
        facts[i] = Py_NewRef(fields[i + (i >= PHASE)]);
    PyObject *inner = tuple_of(facts, NUM_FIELDS - 1);
    PyObject *pair[] = {inner, Py_NewRef(fields[PHASE] == self->forward ? Py_True : fields[PHASE])};
    PyObject *known_by = tuple_of(pair, 2);
    PyObject *told = known_by ? PyDict_GetItemWithError(self->texts, known_by) : NULL;
    if (told) {
        Py_INCREF(told);
    } else if (known_by && !PyErr_Occurred() && (told = worded(self, fields))) {
        if (PyDict_Size(self->texts) >= self->most_texts)
            PyDict_Clear(self->texts);
        if (PyDict_SetItem(self->texts, known_by, told) < 0)
            Py_CLEAR(told);
    }
    CLEAR_EACH(fields);
    Py_XDECREF(known_by);
    int is_short = told && PyObject_TypeCheck(told, (PyTypeObject *)state->wording) &&
                   ((Wording *)told)->text && PyBytes_Check(((Wording *)told)->text) &&
                   PyBytes_Size(((Wording *)told)->text) <= self->most_text;
    if (!is_short)
        Py_CLEAR(told);
    return told;
}

/* Lay down a call of which `told` tells; True where there is one of its name already. */
static PyObject *lay_told(Desk *self, PyObject *call, PyObject *told)
{
    PyObject *fields[NUM_FIELDS - NUM_REPEATED], *done = NULL; /* op, call, order */
    PyObject *model = PyObject_GetAttr(call, state->model);
    PyObject *number = model ? PyObject_GetAttr(call, state->step) : NULL;
    int is_ours = number && is_of_step(self, model, number);
    Py_XDECREF(model);
    Py_XDECREF(number);
    if (!is_ours || !fetch_all(&self->of_call, call, 0, NUM_FIELDS - NUM_REPEATED, fields))
        return NULL;
    PyObject *name = unseen(PyTuple_Pack(2, fields[0], fields[1]));
    PyObject *calls = ((StepPlace *)self->step)->calls;
    if (name && PyDict_GetItemWithError(calls, name)) {
        done = Py_NewRef(Py_True);
    } else if (name && !PyErr_Occurred()) {
        PyObject *args[] = {self->step, name, call, told, fields[2]};
        done = lay_call(self, args);
    }
    Py_XDECREF(name);
    CLEAR_EACH(fields);
    return done;
}

/* Whether plain records are taken now. */
static int takes(Desk *self)
{
    return self->is_open && self->step; /* another thread may end a step */
}

typedef PyObject *(*Laying)(Desk *, PyObject *, PyObject *);

/* Have `laying` lay something down while nothing else runs; NULL where it has not. */
static PyObject *laid_alone(Desk *self, Laying laying, PyObject *what, PyObject *with)
{
    int was_enabled = PyGC_Disable();
    PyObject *done = NULL;
    if (!((Positions *)self->ring)->failed && takes(self) && is_free(self) > 0)
        done = laying(self, what, with);
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

/* Lay down a call at once. */
static PyObject *desk_told(PyObject *object, PyObject *call)
{
    Desk *self = (Desk *)object;
    if (!takes(self) || !self->texts)
        Py_RETURN_NONE;
    PyObject *told = text_of(self, call);
    PyObject *done = told ? laid_alone(self, lay_told, call, told) : NULL;
    Py_XDECREF(told);
    return told_of(self, done);
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
    {"know", desk_know, METH_VARARGS, "Know records by their forms."},
    {"tell", desk_tell, METH_VARARGS, "Know calls by what is said of them."},
    {"lay_record", FAST(desk_record), "Lay down (record, source); None, or whether none must wake."},
    {"lay_told", desk_told, METH_O, "Lay down a call; None, or whether none must wake."},
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
    {Py_tp_members, filling_members}, {Py_tp_dealloc, filling_free},
    {Py_tp_doc, "How far a part is filled."}, {0, NULL}};
static PyType_Slot footprint_slots[] = {
    {Py_tp_members, footprint_members}, {Py_tp_dealloc, free_plain},
    {Py_tp_doc, "How much room a value takes."}, {0, NULL}};
static PyType_Slot span_slots[] = {
    {Py_bf_getbuffer, span_buffer}, {Py_tp_dealloc, free_plain},
    {Py_tp_doc, "Bytes of the ring."}, {0, NULL}};
static PyType_Slot pending_slots[] = {
    {Py_tp_methods, pending_methods}, {Py_tp_getset, pending_getset},
    {Py_sq_length, pending_length}, {Py_sq_item, pending_item}, {Py_tp_dealloc, pending_free},
    {Py_tp_doc, "Records that are not written yet, the oldest first."}, {0, NULL}};
static PyType_Slot wording_slots[] = {
    {Py_tp_members, wording_members}, {Py_tp_dealloc, wording_free},
    {Py_tp_doc, "What is said of a call."}, {0, NULL}};
static PyType_Slot call_place_slots[] = {
    {Py_tp_members, call_members}, {Py_tp_getset, call_getset}, {Py_tp_dealloc, call_free},
    {Py_tp_doc, "Where a call is declared, and where its values lie."}, {0, NULL}};
static PyType_Slot step_slots[] = {
    {Py_tp_members, step_members}, {Py_tp_dealloc, step_free},
    {Py_tp_doc, "Where goes what comes next of a step."}, {0, NULL}};
static PyType_Slot desk_slots[] = {
    {Py_tp_members, desk_members}, {Py_tp_getset, desk_getset}, {Py_tp_methods, desk_methods}, {Py_tp_dealloc, desk_free},
    {Py_tp_traverse, desk_traverse}, {Py_tp_clear, desk_clear},
    {Py_tp_doc, "Where records are laid into the ring."}, {0, NULL}};

#define PLAIN Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE

static PyType_Spec positions_spec = {"_desk.Positions", sizeof(Positions), 0, PLAIN,
                                     positions_slots};
static PyType_Spec filling_spec = {"_desk.Filling", sizeof(Filling), 0, PLAIN, filling_slots};
static PyType_Spec footprint_spec = {"_desk.Footprint", sizeof(Footprint), 0, PLAIN, footprint_slots};
static PyType_Spec span_spec = {"_desk.Span", sizeof(Span), 0, PLAIN, span_slots};
static PyType_Spec pending_spec = {"_desk.Pending", sizeof(Pending), 0, Py_TPFLAGS_DEFAULT,
                                   pending_slots};
static PyType_Spec wording_spec = {"_desk.Wording", sizeof(Wording), 0, PLAIN, wording_slots};
static PyType_Spec call_spec = {"_desk.CallPlace", sizeof(CallPlace), 0, PLAIN,
                                call_place_slots};
static PyType_Spec step_spec = {"_desk.StepPlace", sizeof(StepPlace), 0, PLAIN, step_slots};
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
        {&state->number, "number"}, 
        {&state->nudge, "nudge"},   {&state->text, "text"},     
        {&state->model, "model"},   {&state->step, "step"},     {&state->lying, "lying"},
        {&state->found, "digest"},  {&state->op, "op"},
        {&state->call, "call"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].where = PyUnicode_InternFromString(names[i].name)))
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
    state->span = add_type(made, "Span", &span_spec);
    state->pending = add_type(made, "Pending", &pending_spec);
    state->wording = add_type(made, "Wording", &wording_spec);
    state->call_place = add_type(made, "CallPlace", &call_spec);
    state->step_place = add_type(made, "StepPlace", &step_spec);
    state->desk = add_type(made, "Desk", &desk_spec);
    PyObject *functools = PyImport_ImportModule("functools");
    state->partial = functools ? PyObject_GetAttrString(functools, "partial") : NULL;
    Py_XDECREF(functools);
    if (!state->partial)
        return -1;
    int are_there = state->desk && state->footprint && state->filling && state->positions &&
                    state->wording && state->call_place && state->step_place && state->span &&
                    state->pending;
    return are_there ? name_all() : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_desk", "Records laid into the ring.", sizeof(State), NULL,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__desk(void) { return PyModuleDef_Init(&module); }
