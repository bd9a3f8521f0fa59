/* Records calls that came before: what step.py and values.py do of those, in one call of C each.

   A `Known` is what was found out about a call when its like ran before: its name and text, how
   its arguments looked, from which line it came, and the forms of its values. A call that is like
   it in all that decides is laid into the archive as it is known; nothing is guessed. Whatever is
   not as it was goes the way in Python: a call that looks different, or a single value of it.

   Tensors are asked by the methods of torch that let nobody else run. The collector of garbage
   rests meanwhile, so that no other code of Python runs in between, nor any handler of a signal;
   only where the way in Python is asked does it go on. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "../../archive/write/_digest.h"
#include "_called.h"

#define MOST_TENSORS 128
#define MOST_FRAMES 512
#define MOST_DEPTH 200 /* of modules within modules */

enum { TENSOR, CONSTANT, SEQUENCE, SLICE };

typedef struct {
    PyObject_HEAD
    PyObject *slot, *where;                  /* its name in the call, and in the step */
    PyObject *type, *dtype, *device;         /* NULL: nothing is known yet */
    PyObject *geometry, *itemsize, *form;    /* as `Looks` has them */
    PyObject *key, *stored, *kept_form;      /* of what is kept in place of it */
    PyObject *again;                         /* makes that of a value like it, or None */
    PyObject *grad_slot;                     /* of its gradient, NULL: nobody has asked */
    PyObject *shape, *stride;                /* borrowed from `geometry` */
    unsigned long long keys;
    long long offset, nbytes, end;           /* `end`: bytes that its storage must have */
    long long kept_nbytes;
    char counted, is_host, is_dense;
    char takes_gaps;                         /* `again` reads it as it lies */
} Look;

typedef struct {
    PyObject_HEAD
    PyObject *call, *name, *texts;           /* texts: what is written of it, by order */
    PyObject *args, *kwargs, *result;        /* how they looked */
    PyObject *filename;                      /* of the user's line, or None */
    PyObject *inputs, *outputs;              /* lists of Looks */
    long line;
    char swapped, gives_first;
} Known;

typedef struct {
    PyObject_HEAD
    PyObject *owner;                         /* has the ways in Python */
    PyObject *scopes, *orders, *outlet, *sink, *desk, *step;
    PyObject *acquire, *release;
    PyObject *seen, *storages, *blanks, *layouts;
    PyObject *made; /* rows of this step, by where the bytes lie */
    PyObject *lay_call, *lay_value, *lay_link;
    PyObject *watched, *takers, *targets, *calls, *origins; /* NULL: no gradients are recorded */
    PyObject *back;                          /* what hooks tensors at once, or None */
    PyObject *whole, *scope_type, *root_name, *slow; /* the step, for calls of modules */
    PyObject *first_calls, *ops, *module_ops, *knowns, *outer, *path_calls, *weights;
    unsigned long long num_calls, num_values, num_links, nbytes;
    unsigned long thread;
    char records_inputs, records_outputs, condenses, remembers, is_over;
    char collects; /* whether garbage is collected where code of Python runs */
} Course;

typedef struct {
    PyObject_HEAD
    PyObject *reference;
} Held;

typedef struct {
    PyObject_HEAD
    unsigned long long *words; /* of modules, names and tensors; addresses, and versions */
    size_t count, room, known;
    char is_same;
} Versions;

typedef struct {
    PyObject_HEAD
    Vectorcall call;
    PyObject *course, *module, *run;
} ModuleCall;

/* The gradients of one step: what their hooks have in common. */
typedef struct {
    PyObject_HEAD
    PyObject *gradients, *step, *model;      /* the last is a name */
    PyObject *hooked, *running;              /* tables of the whole capture, see Watches */
    PyObject *recorded, *takers;             /* names of parameters, and who took them */
    PyObject *find, *put;                    /* the ways in Python */
    PyObject *course;                        /* NULL: not asked yet; None: all go the way in Python */
    PyObject *writes, *looks, *first_calls, *counts, *number;
} Backward;

/* What is called with the gradient of a tensor, which is recorded at its targets. */
typedef struct {
    PyObject_HEAD
    PyObject *back, *targets;
} TensorHook;

/* What is called with a parameter that has its gradient, in whatever step. */
typedef struct {
    PyObject_HEAD
    PyObject *running, *latest, *model, *name; /* of the model, and of the parameter */
    PyObject *op, *slot, *slow;                /* op: None where its module is not selected */
} ParameterHook;

static PyObject *course_type, *known_type, *look_type, *held_type, *versions_type,
    *module_call_type, *backward_type, *tensor_hook_type, *parameter_hook_type;

/* What torch and the package have, set once by `set_up`. */
static struct {
    PyObject *tensor, *parameter, *keys_of, *data_ptr, *stride, *offset, *storage, *storage_nbytes,
        *weak_ref, *free_weak_ref, *num_modes, *is_autocast, *digest, *hasher, *foreign,
        *no_function, *no_dispatch, *detach, *contiguous, *hooks_dict;
} torch;

static struct {
    PyObject *here, *known, *numbers, *sink, *is_open, *shape, *dtype, *device, *version, *cdata,
        *raw_repr, *f_back, *co_filename, *step, *start, *stop, *step_of_slice, *begin, *put,
        *put_outputs, *watch, *tell, *condense, *parameters, *buffers, *modules, *op, *call, *order,
        *enter, *exit, *path, *prefix, *ops, *model, *paths, *leave, *hook, *requires_grad,
        *is_param, *grad_fn, *sequence_nr, *output_nr, *hooks, *register_dict, *grad, *number,
        *calls, *values, *links, *nbytes;
} names;

static PyObject *call1(PyObject *callable, PyObject *arg)
{
    return PyObject_CallFunctionObjArgs(callable, arg, NULL);
}

/* Rest from collecting garbage, and go on where code of Python runs, which may change its mind. */
static void rest(Course *course) { course->collects = (char)PyGC_Disable(); }

static void go_on(Course *course)
{
    if (course->collects)
        PyGC_Enable();
}

/* A method of the owner, which is written in Python, on up to four arguments. */
static PyObject *ask(Course *course, PyObject *name, PyObject *one, PyObject *two, PyObject *three,
                     PyObject *four)
{
    go_on(course);
    PyObject *method = PyObject_GetAttr(course->owner, name);
    PyObject *answer =
        method ? PyObject_CallFunctionObjArgs(method, one, two, three, four, NULL) : NULL;
    Py_XDECREF(method);
    rest(course);
    return answer;
}

/* A tuple that the garbage collector needs not look at: it is in no circle. */
static PyObject *unseen(PyObject *tuple)
{
    if (tuple)
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

/* A number that is taken; -1 with an exception where there is none. */
static long long taken(PyObject *number)
{
    long long found = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return found;
}

/* ---- how arguments look ---- */

static int same_constant(PyObject *known, PyObject *value)
{
    if (known == value)
        return 1;
    if (Py_TYPE(known) != Py_TYPE(value))
        return 0;
    if (Py_TYPE(value) == &PyFloat_Type) {
        double one = PyFloat_AsDouble(known), other = PyFloat_AsDouble(value);
        return memcmp(&one, &other, sizeof one) == 0;
    }
    return PyObject_RichCompareBool(known, value, Py_EQ);
}

typedef struct {
    PyObject *tensors[MOST_TENSORS]; /* borrowed */
    int count;
} Found;

/* Whether `value` looks as `look` says: 1, 0, or -1 with an exception. Its tensors are found. */
static int looks_like(PyObject *look, PyObject *value, Found *found)
{
    switch (PyLong_AsLong(PyTuple_GetItem(look, 0))) {
    case TENSOR:
        if ((PyObject *)Py_TYPE(value) != torch.tensor && (PyObject *)Py_TYPE(value) != torch.parameter)
            return 0;
        if (found->count == MOST_TENSORS)
            return 0;
        found->tensors[found->count++] = value;
        return 1;
    case CONSTANT:
        return same_constant(PyTuple_GetItem(look, 1), value);
    case SEQUENCE: {
        if ((PyObject *)Py_TYPE(value) != PyTuple_GetItem(look, 1))
            return 0;
        PyObject *children = PyTuple_GetItem(look, 2);
        Py_ssize_t count = PyTuple_Size(children);
        int is_list = PyList_Check(value);
        if ((is_list ? PyList_Size(value) : PyTuple_Size(value)) != count)
            return 0;
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *child = is_list ? PyList_GetItem(value, i) : PyTuple_GetItem(value, i);
            int same = looks_like(PyTuple_GetItem(children, i), child, found);
            if (same <= 0)
                return same;
        }
        return 1;
    }
    case SLICE: {
        if (Py_TYPE(value) != &PySlice_Type)
            return 0;
        PyObject *words[] = {names.start, names.stop, names.step_of_slice};
        for (int i = 0; i < 3; i++) {
            PyObject *bound = PyObject_GetAttr(value, words[i]);
            if (!bound)
                return -1;
            int same = looks_like(PyTuple_GetItem(look, i + 1), bound, found);
            Py_DECREF(bound); /* the slice has it */
            if (same <= 0)
                return same;
        }
        return 1;
    }
    default:
        return 0;
    }
}

static int arguments_look_like(Known *known, PyObject *args, PyObject *kwargs, Found *found)
{
    Py_ssize_t count = PyTuple_Size(known->args);
    if (PyTuple_Size(args) != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *arg = PyTuple_GetItem(args, known->swapped ? count - 1 - i : i);
        int same = looks_like(PyTuple_GetItem(known->args, i), arg, found);
        if (same <= 0)
            return same;
    }
    Py_ssize_t num_words = PyTuple_Size(known->kwargs), at = 0, place = 0;
    if (PyDict_Size(kwargs) != num_words)
        return 0;
    PyObject *word, *value;
    while (PyDict_Next(kwargs, &place, &word, &value)) {
        PyObject *expected = PyTuple_GetItem(known->kwargs, at++);
        int same = same_constant(PyTuple_GetItem(expected, 0), word);
        if (same > 0)
            same = looks_like(PyTuple_GetItem(expected, 1), value, found);
        if (same <= 0)
            return same;
    }
    return 1;
}

/* Whether the user's line is that of `known`: 1, 0, or -1 with an exception. */
static int comes_from(Known *known)
{
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    Py_XINCREF(frame);
    int same = known->filename == Py_None;
    for (int depth = 0; frame && frame != Py_None && depth < MOST_FRAMES; depth++) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        PyObject *name = PyObject_GetAttr(code, names.co_filename);
        Py_DECREF(code);
        PyObject *foreign = name ? PyDict_GetItem(torch.foreign, name) : NULL;
        if (foreign != Py_True) { /* the user's, or not known yet */
            same = foreign == Py_False && known->filename != Py_None &&
                   PyFrame_GetLineNumber((PyFrameObject *)frame) == known->line &&
                   same_constant(known->filename, name) > 0;
            Py_XDECREF(name);
            break;
        }
        Py_DECREF(name);
        PyObject *outer = PyObject_GetAttr(frame, names.f_back);
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
    return PyErr_Occurred() ? -1 : same;
}

/* ---- values ---- */

static int same_sizes(PyObject *known, PyObject *sizes)
{
    Py_ssize_t count = PyTuple_Size(known);
    if (!sizes || PyTuple_Size(sizes) != count)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PyTuple_GetItem(known, i), *other = PyTuple_GetItem(sizes, i);
        if (one != other && PyLong_AsLongLong(one) != PyLong_AsLongLong(other))
            return 0;
    }
    return 1;
}

static int has_same_sizes(PyObject *known, PyObject *sizes)
{
    int same = same_sizes(known, sizes);
    Py_XDECREF(sizes);
    return same;
}

static int is_object(PyObject *known, PyObject *found)
{
    int same = found && (known == found || PyObject_RichCompareBool(known, found, Py_EQ) > 0);
    Py_XDECREF(found);
    return same;
}

static int has_keys(Look *value, PyObject *tensor)
{
    PyObject *keys = call1(torch.keys_of, tensor);
    PyObject *word = keys ? PyObject_GetAttr(keys, names.raw_repr) : NULL;
    PyObject *number = word ? PyObject_CallNoArgs(word) : NULL;
    unsigned long long found = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(keys);
    Py_XDECREF(word);
    Py_XDECREF(number);
    return number && found == value->keys;
}

typedef struct {
    PyObject *storage, *held, *address, *version, *place;
} Looked;

static void forget(Looked *looked)
{
    Py_CLEAR(looked->storage);
    Py_CLEAR(looked->held);
    Py_CLEAR(looked->address);
    Py_CLEAR(looked->version);
    Py_CLEAR(looked->place);
}

/* Look at `tensor`: 1 where it is as `value` says, and then where it lies, and its version. */
static int look_at(Look *value, PyObject *tensor, Looked *looked)
{
    if (!value->type || (PyObject *)Py_TYPE(tensor) != value->type)
        return 0;
    if (!has_same_sizes(value->shape, PyObject_GetAttr(tensor, names.shape)) ||
        !has_same_sizes(value->stride, call1(torch.stride, tensor)) ||
        !is_object(value->dtype, PyObject_GetAttr(tensor, names.dtype)) ||
        taken(call1(torch.offset, tensor)) != value->offset ||
        !is_object(value->device, PyObject_GetAttr(tensor, names.device)) ||
        !has_keys(value, tensor))
        return 0;
    looked->address = call1(torch.data_ptr, tensor);
    looked->storage = looked->address ? call1(torch.storage, tensor) : NULL;
    if (!looked->storage || PyObject_Not(looked->address))
        return 0;
    if (taken(call1(torch.storage_nbytes, looked->storage)) < value->end)
        return 0;
    looked->held = PyObject_GetAttr(looked->storage, names.cdata);
    looked->version = value->counted ? PyObject_GetAttr(tensor, names.version) : Py_NewRef(Py_None);
    if (!looked->held || !looked->version)
        return 0;
    looked->place = unseen(PyTuple_Pack(3, looked->held, looked->address, value->geometry));
    return looked->place != NULL;
}

/* The digest of so many bytes that lie in one piece, by a new hasher. */
static PyObject *digest_dense(PyObject *hasher, char *from, Py_ssize_t nbytes)
{
    PyObject *hashing = PyObject_CallNoArgs(hasher), *digest = NULL;
    PyObject *update = hashing ? PyObject_GetAttrString(hashing, "update") : NULL;
    if (update && feed(update, from, nbytes) == 0)
        digest = PyObject_CallMethod(hashing, "hexdigest", NULL);
    Py_XDECREF(update);
    Py_XDECREF(hashing);
    return digest;
}

#define LEAVE 2

/* The digest of a value; None where it is strided so that torch is faster. */
static PyObject *digest_of(Look *value, PyObject *address)
{
    static char room[LONG];
    char *from = (char *)(uintptr_t)PyLong_AsUnsignedLongLong(address);
    int is_long = value->nbytes >= LONG, size = (int)PyLong_AsLong(value->itemsize);
    if (value->is_dense)
        return is_long ? digest_dense(torch.hasher, from, (Py_ssize_t)value->nbytes)
                       : digest_at_once(torch.digest, from, (Py_ssize_t)value->nbytes);
    Dim dims[MOST_DIMS];
    int num_dims = read_dims(value->shape, value->stride, size, dims);
    if (num_dims < 0)
        return NULL;
    if (is_long)
        return has_rows(dims, num_dims, size)
                   ? copy_digested(torch.hasher, NULL, from, dims, num_dims, size)
                   : Py_NewRef(Py_None);
    copy_all(room, from, dims, num_dims, size);
    return digest_at_once(torch.digest, room, (Py_ssize_t)value->nbytes);
}

/* Whether a tensor holds what it held when it was `seen`: 1, 0, or -1 with an exception; LEAVE
   where it would take long to see. */
static int is_still(PyObject *seen, Look *value, Looked *looked)
{
    PyObject *version = PyTuple_GetItem(seen, 1), *digest = PyTuple_GetItem(seen, 2);
    int same = PyObject_RichCompareBool(version, looked->version, Py_EQ);
    if (same <= 0)
        return same;
    if (PyObject_Not(digest))
        return looked->version != Py_None;
    if (value->nbytes > MOST_AT_ONCE)
        return LEAVE;
    PyObject *now = digest_of(value, looked->address);
    same = !now ? -1 : now == Py_None ? LEAVE : PyObject_RichCompareBool(now, digest, Py_EQ);
    Py_XDECREF(now);
    return same;
}

/* Hold the storage, which keeps its address from being reused. */
static int hold(Course *course, Looked *looked)
{
    if (PyDict_GetItem(course->storages, looked->held))
        return 0;
    PyObject *reference = call1(torch.weak_ref, looked->storage);
    Held *held = reference ? PyObject_New(Held, (PyTypeObject *)held_type) : NULL;
    if (!held) {
        Py_XDECREF(reference);
        return -1;
    }
    held->reference = reference;
    int done = PyDict_SetItem(course->storages, looked->held, (PyObject *)held);
    Py_DECREF((PyObject *)held);
    return done;
}

typedef enum { FAILED = -1, STRANGE, LEFT, LAID } Outcome;

/* What the archive keeps in place of a value: None, all of it; nothing, where that is not known;
   or (form, fill, address, itemsize, shape, stride, digest, nbytes), where `fill` brings the bytes
   later. Code of Python runs here. */
static PyObject *condensed(Course *course, Look *value, PyObject *tensor)
{
    if (!course->condenses)
        return Py_NewRef(Py_None);
    return ask(course, names.condense, (PyObject *)value, tensor, NULL, NULL);
}

/* Set torch's modes aside; `take_up` puts them back. */
static int set_aside(PyObject *guards[2])
{
    PyObject *types[2] = {torch.no_function, torch.no_dispatch};
    for (int i = 0; i < 2; i++) {
        guards[i] = PyObject_CallNoArgs(types[i]);
        PyObject *done = guards[i] ? PyObject_CallMethodObjArgs(guards[i], names.enter, NULL) : NULL;
        Py_XDECREF(done);
        if (done)
            continue;
        Py_CLEAR(guards[i]);
        return -1;
    }
    return 0;
}

static void take_up(PyObject *guards[2])
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    for (int i = 1; i >= 0; i--) {
        PyObject *done = !guards[i] ? NULL
                                    : PyObject_CallMethodObjArgs(guards[i], names.exit, Py_None,
                                                                 Py_None, Py_None, NULL);
        if (guards[i] && !done)
            PyErr_WriteUnraisable(guards[i]);
        Py_XDECREF(done);
        Py_CLEAR(guards[i]);
    }
    PyErr_Restore(type, error, trace);
}

/* A copy of `tensor` without gaps, which nobody else sees. */
static PyObject *densely(PyObject *tensor)
{
    PyObject *guards[2] = {NULL, NULL}, *plain = NULL, *dense = NULL;
    if (set_aside(guards) == 0) {
        plain = call1(torch.detach, tensor);
        dense = plain ? call1(torch.contiguous, plain) : NULL;
    }
    take_up(guards);
    Py_XDECREF(plain);
    return dense;
}

/* What brings what is kept of a value like one before, later; NULL where Python must be asked. */
static PyObject *made_again(Course *course, Look *value, PyObject *tensor, Looked *looked)
{
    if (!course->condenses || !value->again || value->again == Py_None)
        return NULL;
    int as_it_lies = value->is_dense || value->takes_gaps;
    PyObject *dense = as_it_lies ? Py_NewRef(tensor) : densely(tensor);
    PyObject *address = !dense       ? NULL
                        : as_it_lies ? Py_NewRef(looked->address)
                                     : call1(torch.data_ptr, dense);
    PyObject *fill =
        address ? PyObject_CallFunctionObjArgs(value->again, address, dense, NULL) : NULL;
    Py_XDECREF(address);
    Py_XDECREF(dense);
    if (!fill && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* the ordinary way meets it once more, and tells of it */
    if (fill == Py_None)
        Py_CLEAR(fill);
    return fill;
}

/* The same, or what was made before of the same bytes in another shape: rows know no shapes. */
static PyObject *made_once(Course *course, Look *value, PyObject *tensor, Looked *looked)
{
    if (!course->condenses || !value->again || value->again == Py_None || !value->is_dense ||
        looked->version == Py_None)
        return made_again(course, value, tensor, looked);
    PyObject *size = PyLong_FromLongLong(value->nbytes), *fill = NULL;
    PyObject *place =
        size ? PyTuple_Pack(4, looked->held, looked->address, size, value->dtype) : NULL;
    PyObject *before = place ? PyDict_GetItemWithError(course->made, place) : NULL;
    int is_new = 0;
    if (before && PyObject_RichCompareBool(PyTuple_GetItem(before, 0), looked->version, Py_EQ) == 1)
        fill = Py_NewRef(PyTuple_GetItem(before, 1));
    else if (place && !PyErr_Occurred())
        is_new = (fill = made_again(course, value, tensor, looked)) != NULL;
    if (is_new) {
        PyObject *mark = PyTuple_Pack(2, looked->version, fill);
        if (!mark || PyDict_SetItem(course->made, place, mark) < 0)
            Py_CLEAR(fill);
        Py_XDECREF(mark);
    }
    Py_XDECREF(size);
    Py_XDECREF(place);
    return fill;
}

/* Lay down the bytes of a value, or what is kept of it; the digest of the value, or None. */
static PyObject *store(Course *course, PyObject *planned, PyObject *order, Look *value,
                       PyObject *tensor, Looked *looked)
{
    PyObject *kept = NULL, *done = NULL, *digest = NULL;
    PyObject *again = made_once(course, value, tensor, looked);
    if (PyErr_Occurred() || hold(course, looked) < 0)
        goto end;
    if (again) {
        done = PyObject_CallFunctionObjArgs(course->lay_value, planned, value->slot, value->where,
                                            value->kept_form, order, again, NULL);
        course->nbytes += done && done != Py_None ? (unsigned long long)value->kept_nbytes : 0;
        digest = done && done != Py_None ? PyUnicode_FromString("") : done ? Py_NewRef(done) : NULL;
        Py_XDECREF(done);
        goto end;
    }
    kept = condensed(course, value, tensor);
    if (!kept)
        goto end;
    if (kept == Py_None) {
        if (value->is_host && value->nbytes <= MOST_AT_ONCE)
            done = digest = PyObject_CallFunctionObjArgs(
                course->lay_value, planned, value->slot, value->where, value->form, order,
                looked->address, value->itemsize, value->shape, value->stride, NULL);
        course->nbytes += done && done != Py_None ? (unsigned long long)value->nbytes : 0;
    } else if (PyTuple_Check(kept) && PyTuple_Size(kept) >= 8) {
        PyObject *fill = PyTuple_GetItem(kept, 1);
        if (fill != Py_None)
            done = PyObject_CallFunctionObjArgs(course->lay_value, planned, value->slot,
                                                value->where, PyTuple_GetItem(kept, 0), order, fill,
                                                NULL);
        else
            done = PyObject_CallFunctionObjArgs(
                course->lay_value, planned, value->slot, value->where, PyTuple_GetItem(kept, 0),
                order, PyTuple_GetItem(kept, 2), PyTuple_GetItem(kept, 3), PyTuple_GetItem(kept, 4),
                PyTuple_GetItem(kept, 5), NULL);
        if (done && done != Py_None) {
            digest = Py_NewRef(PyTuple_GetItem(kept, 6));
            course->nbytes += PyLong_AsUnsignedLongLong(PyTuple_GetItem(kept, 7));
            Py_DECREF(done);
        } else {
            digest = done;
        }
    }
end:
    Py_XDECREF(again);
    Py_XDECREF(kept);
    return digest || PyErr_Occurred() ? digest : Py_NewRef(Py_None);
}

/* Lay down a value, or a link to it. One that is STRANGE or LEFT goes the way in Python. Where the
   bytes of one that is LAID lie is told to `lies`, a new reference, if somebody wants to know. */
static Outcome lay(Course *course, PyObject *planned, PyObject *order, Look *value, PyObject *tensor,
                   PyObject **lies)
{
    Looked looked = {NULL, NULL, NULL, NULL, NULL};
    PyObject *done = NULL;
    Outcome laid = STRANGE;
    if (planned == Py_None || !value->form || PyDict_Size(course->layouts) ||
        !look_at(value, tensor, &looked))
        goto end;
    if (PyDict_Size(course->blanks) && PyDict_GetItem(course->blanks, looked.held))
        goto end; /* memory without a value, here or there */
    laid = LEFT;
    if (value->is_host && value->nbytes > MOST_AT_ONCE && !course->condenses)
        goto end;
    PyObject *seen = PyDict_GetItem(course->seen, looked.place);
    int still = seen ? is_still(seen, value, &looked) : 0;
    if (still < 0 || still == LEAVE)
        goto end;
    if (lies)
        *lies = Py_NewRef(still ? PyTuple_GetItem(seen, 0) : value->where);
    if (still) {
        done = PyObject_CallFunctionObjArgs(course->lay_link, planned, value->slot, value->form,
                                            order, PyTuple_GetItem(seen, 0), NULL);
        laid = done && done != Py_None ? LAID : LEFT;
        course->num_links += laid == LAID;
    } else {
        done = store(course, planned, order, value, tensor, &looked);
        laid = done && done != Py_None ? LAID : LEFT;
        if (laid == LAID && course->remembers) {
            PyObject *mark = unseen(PyTuple_Pack(3, value->where, looked.version, done));
            if (!mark || PyDict_SetItem(course->seen, looked.place, mark) < 0)
                laid = FAILED;
            Py_XDECREF(mark);
        }
    }
    course->num_values += laid == LAID;
end:
    Py_XDECREF(done);
    forget(&looked);
    return PyErr_Occurred() ? FAILED : laid;
}

/* ---- calls ---- */

static int record(Course *course, PyObject *ticket, PyObject *values, Found *found)
{
    PyObject *planned = PyTuple_GetItem(ticket, 1), *order = PyTuple_GetItem(ticket, 2);
    for (int i = 0; i < found->count; i++) {
        Look *value = (Look *)PyList_GetItem(values, i);
        if (!value)
            return -1;
        Outcome laid = lay(course, planned, order, value, found->tensors[i], NULL);
        if (laid == FAILED)
            return -1;
        if (laid == LAID)
            continue;
        PyObject *done = ask(course, names.put, ticket, (PyObject *)value, found->tensors[i],
                             laid == STRANGE ? Py_True : Py_False);
        Py_XDECREF(done);
        if (!done)
            return -1;
    }
    return 0;
}

/* The list that `all` has for `key`, which is taken, a new reference; a new one where there is none,
   and `is_new` says so. */
static PyObject *list_of(PyObject *all, PyObject *key, int *is_new)
{
    PyObject *found = key ? PyDict_GetItemWithError(all, key) : NULL;
    *is_new = key && !found && !PyErr_Occurred();
    PyObject *list = found ? Py_NewRef(found) : *is_new ? PyList_New(0) : NULL;
    if (list && *is_new && PyDict_SetItem(all, key, list) < 0)
        Py_CLEAR(list);
    Py_XDECREF(key);
    return list;
}

/* By what the gradient of `tensor` is known: (number of its node, which output of it), a new
   reference; NULL without an exception where the way in Python has more to ask: of a leaf, of what
   was made a parameter by hand, and of what a compiled graph gave. The node is told, too, a new
   reference. */
static PyObject *gradient_of(PyObject *tensor, PyObject **made_by)
{
    PyObject *which = NULL;
    if (PyObject_HasAttr(tensor, names.is_param)) /* which makes no exception where it is not */
        return NULL;
    PyObject *node = PyObject_GetAttr(tensor, names.grad_fn);
    PyObject *name = node && node != Py_None ? PyType_GetName(Py_TYPE(node)) : NULL;
    if (name && PyUnicode_CompareWithASCIIString(name, "CompiledFunctionBackward") != 0) {
        PyObject *number = PyObject_CallMethodObjArgs(node, names.sequence_nr, NULL);
        PyObject *output = number ? PyObject_GetAttr(tensor, names.output_nr) : NULL;
        which = output ? unseen(PyTuple_Pack(2, number, output)) : NULL;
        Py_XDECREF(number);
        Py_XDECREF(output);
    }
    Py_XDECREF(name);
    if (which)
        *made_by = node;
    else
        Py_XDECREF(node);
    return which;
}

/* The hooks of `tensor`, which `node` made, a new reference: as Tensor.register_hook has them. */
static PyObject *hooks_of(PyObject *tensor, PyObject *node)
{
    PyObject *hooks = PyObject_GetAttr(tensor, names.hooks);
    if (hooks != Py_None)
        return hooks;
    Py_DECREF(hooks);
    hooks = PyObject_CallNoArgs(torch.hooks_dict);
    PyObject *done = NULL;
    if (hooks && PyObject_SetAttr(tensor, names.hooks, hooks) == 0)
        done = PyObject_CallMethodObjArgs(node, names.register_dict, tensor, NULL);
    if (!done)
        Py_CLEAR(hooks);
    Py_XDECREF(done);
    return hooks;
}

/* Have the gradient of `tensor` recorded at `targets`, which are added to meanwhile. The hook has
   the address of `targets` for its number, which no other one has while it is there: those that
   torch gives count from 0. */
static int hook_tensor(Backward *back, PyObject *tensor, PyObject *node, PyObject *targets)
{
    PyTypeObject *type = (PyTypeObject *)tensor_hook_type;
    PyObject *hooks = hooks_of(tensor, node);
    PyObject *number = hooks ? PyLong_FromVoidPtr(targets) : NULL;
    PyObject *table = number ? PyWeakref_NewRef(hooks, NULL) : NULL;
    TensorHook *hook =
        table ? (TensorHook *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0) : NULL;
    int done = -1;
    if (hook) {
        hook->back = Py_NewRef((PyObject *)back);
        hook->targets = Py_NewRef(targets);
        if (PyObject_SetItem(hooks, number, (PyObject *)hook) == 0)
            done = PyDict_SetItem(back->hooked, number, table);
    }
    Py_XDECREF((PyObject *)hook);
    Py_XDECREF(table);
    Py_XDECREF(number);
    Py_XDECREF(hooks);
    return done;
}

/* What Gradients.watch does of one value: 1, 0 where that has more to do, or -1 with an exception. */
static int watch_value(Course *course, PyObject *ticket, Look *value, PyObject *tensor)
{
    PyObject *needs = PyObject_GetAttr(tensor, names.requires_grad);
    Py_XDECREF(needs);
    if (needs != Py_True)
        return needs ? 1 : -1;
    int before = PySet_Contains(course->watched, value->where);
    if (before)
        return before;
    int is_parameter = (PyObject *)Py_TYPE(tensor) == torch.parameter, is_new;
    if (!is_parameter && PyDict_Size(course->origins))
        return 0;
    PyObject *node = NULL;
    PyObject *which = is_parameter ? PyLong_FromVoidPtr(tensor) : gradient_of(tensor, &node);
    if (!which)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *targets = list_of(is_parameter ? course->takers : course->targets, which, &is_new);
    if (!value->grad_slot)
        value->grad_slot = PyUnicode_FromFormat("grad_%U", value->slot);
    PyObject *target = value->grad_slot ? unseen(PyTuple_Pack(2, ticket, value->grad_slot)) : NULL;
    int done = targets && target && PySet_Add(course->watched, value->where) == 0 ? 1 : -1;
    if (done > 0 && is_new && !is_parameter) {
        if ((PyObject *)Py_TYPE(course->back) == backward_type) {
            done = hook_tensor((Backward *)course->back, tensor, node, targets) < 0 ? -1 : 1;
        } else {
            PyObject *hooked = ask(course, names.hook, tensor, targets, NULL, NULL);
            done = hooked ? 1 : -1;
            Py_XDECREF(hooked);
        }
    }
    Py_XDECREF(node);
    if (done > 0 && PyList_Append(targets, target) < 0)
        done = -1;
    Py_XDECREF(target);
    Py_XDECREF(targets);
    return done;
}

/* Have the gradients of these values watched for. */
static int watch(Course *course, PyObject *ticket, PyObject *values, Found *found)
{
    if (!course->watched)
        return 0;
    Known *known = (Known *)PyTuple_GetItem(ticket, 0);
    if (PyDict_SetItem(course->calls, known->name, ticket) < 0)
        return -1;
    for (int i = 0; i < found->count; i++) {
        Look *value = (Look *)PyList_GetItem(values, i);
        int done = value ? watch_value(course, ticket, value, found->tensors[i]) : -1;
        if (done < 0)
            return -1;
        if (done)
            continue;
        PyObject *slots = Py_BuildValue("[(OO)]", value->slot, found->tensors[i]);
        PyObject *asked = slots ? ask(course, names.watch, ticket, slots, NULL, NULL) : NULL;
        Py_XDECREF(slots);
        Py_XDECREF(asked);
        if (!asked)
            return -1;
    }
    return 0;
}

/* Be told what is known of gradients that are recorded: (watched, takers, targets, calls, origins),
   and what hooks tensors, or None. */
static PyObject *course_watch_by(PyObject *object, PyObject *args)
{
    Course *self = (Course *)object;
    PyObject *watched, *takers, *targets, *calls, *origins, *back;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O", &PySet_Type, &watched, &PyDict_Type, &takers,
                          &PyDict_Type, &targets, &PyDict_Type, &calls, &PyDict_Type, &origins,
                          &back))
        return NULL;
    if (self->watched)
        return PyErr_Format(PyExc_RuntimeError, "watch_by: gradients are watched already");
    self->watched = Py_NewRef(watched);
    self->takers = Py_NewRef(takers);
    self->targets = Py_NewRef(targets);
    self->calls = Py_NewRef(calls);
    self->origins = Py_NewRef(origins);
    self->back = Py_NewRef(back);
    Py_RETURN_NONE;
}

/* The Known of the next call of `func`, borrowed, with its number and its name among `numbers`. */
static Known *known_of(Course *course, PyObject *func, PyObject **numbers, PyObject **name,
                       PyObject **number)
{
    PyObject *here = PyObject_GetAttr(course->scopes, names.here);
    PyObject *all = here ? PyObject_GetAttr(here, names.known) : NULL;
    *numbers = all ? PyObject_GetAttr(here, names.numbers) : NULL;
    PyObject *entry = *numbers ? PyDict_GetItemWithError(all, func) : NULL;
    Py_XDECREF(here);
    Py_XDECREF(all); /* the scope has them */
    if (!entry)
        return NULL;
    *name = PyTuple_GetItem(entry, 0);
    PyObject *ran = PyDict_GetItem(*numbers, *name);
    *number = ran ? Py_NewRef(ran) : PyLong_FromLong(0);
    return *number ? (Known *)PyDict_GetItem(PyTuple_GetItem(entry, 1), *number) : NULL;
}

/* Whether torch is as it was when calls became known: nothing else looks on or casts. A module
   is called while our own mode is there, which whoever calls us has set aside. */
static int is_usual(Course *course, int is_module)
{
    if (course->thread != PyThread_get_thread_ident())
        return 0;
    PyObject *sink = PyObject_GetAttr(course->outlet, names.sink);
    Py_XDECREF(sink);
    if (!sink || sink != course->sink)
        return 0;
    PyObject *is_open = PyObject_GetAttr(course->desk, names.is_open);
    Py_XDECREF(is_open);
    if (is_open != Py_True)
        return 0;
    PyObject *casts = PyObject_CallNoArgs(torch.is_autocast);
    Py_XDECREF(casts);
    if (casts != Py_False)
        return 0;
    return is_module || taken(PyObject_CallNoArgs(torch.num_modes)) == 0;
}

static int acquire(Course *course)
{
    PyObject *got = PyObject_CallFunctionObjArgs(course->acquire, Py_False, NULL);
    Py_XDECREF(got);
    return got == Py_True;
}

static void release(Course *course)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *done = PyObject_CallNoArgs(course->release);
    Py_XDECREF(done);
    PyErr_Restore(type, error, trace);
}

/* The text of the call at this place in the order, a new reference. */
static PyObject *text_of(Course *course, Known *known, PyObject *order)
{
    PyObject *text = PyDict_GetItem(known->texts, order);
    if (text)
        return Py_NewRef(text);
    return ask(course, names.tell, (PyObject *)known, order, NULL, NULL);
}

/* Tell the archive of the call; gives (known, planned, order). */
static PyObject *declare(Course *course, Known *known)
{
    PyObject *order = PyIter_Next(course->orders);
    PyObject *text = order ? text_of(course, known, order) : NULL;
    PyObject *planned = NULL, *ticket = NULL;
    if (text && text != Py_None && course->step != Py_None)
        planned = PyObject_CallFunctionObjArgs(course->lay_call, course->step, known->name,
                                               known->call, text, order, NULL);
    if (text && !PyErr_Occurred() && (!planned || planned == Py_None)) {
        Py_XDECREF(planned);
        planned = ask(course, names.begin, (PyObject *)known, order, NULL, NULL);
    }
    if (planned)
        ticket = unseen(PyTuple_Pack(3, known, planned, order));
    course->num_calls += ticket != NULL;
    Py_XDECREF(order);
    Py_XDECREF(text);
    Py_XDECREF(planned);
    return ticket;
}

static PyObject *take(Course *course, PyObject *func, PyObject *args, PyObject *kwargs)
{
    PyObject *numbers = NULL, *name, *number = NULL, *ticket = NULL;
    Found found = {.count = 0};
    Known *known = known_of(course, func, &numbers, &name, &number);
    if (!known || arguments_look_like(known, args, kwargs, &found) <= 0 || comes_from(known) <= 0)
        goto end;
    PyObject *next = PyLong_FromSsize_t(PyLong_AsSsize_t(number) + 1);
    int counted = next ? PyDict_SetItem(numbers, name, next) : -1;
    Py_XDECREF(next);
    Py_INCREF((PyObject *)known);
    ticket = counted < 0 ? NULL : declare(course, known);
    if (ticket && course->records_inputs &&
        (record(course, ticket, known->inputs, &found) < 0 ||
         watch(course, ticket, known->inputs, &found) < 0))
        Py_CLEAR(ticket);
    Py_DECREF((PyObject *)known);
end:
    Py_XDECREF(numbers);
    Py_XDECREF(number);
    return ticket;
}

static PyObject *taking(PyObject *self, PyObject *const *args, Py_ssize_t num_args, int is_module)
{
    Course *course = (Course *)self;
    if (num_args != 3 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "it takes func, args and kwargs");
        return NULL;
    }
    if (!is_usual(course, is_module) || !acquire(course))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    rest(course);
    PyObject *ticket = take(course, args[0], args[1], args[2]);
    go_on(course);
    release(course);
    if (PyErr_Occurred()) {
        Py_XDECREF(ticket);
        return NULL;
    }
    return ticket ? ticket : Py_NewRef(Py_None);
}

/* Record a call of (func, args, kwargs) and what it takes, if its like is known; else None. */
static PyObject *course_take(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    return taking(self, args, num_args, 0);
}

/* The same of a module, whose scope has just been opened; what its class is stands for `func`. */
static PyObject *course_enter(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    return taking(self, args, num_args, 1);
}

static int give(Course *course, PyObject *ticket, PyObject *given)
{
    Known *known = (Known *)PyTuple_GetItem(ticket, 0);
    Found found = {.count = 0};
    int same = looks_like(known->result, given, &found);
    if (same < 0)
        return -1;
    if (same && acquire(course)) {
        rest(course);
        int done = record(course, ticket, known->outputs, &found);
        if (!done)
            done = watch(course, ticket, known->outputs, &found);
        go_on(course);
        release(course);
        return done;
    }
    PyObject *put = PyObject_GetAttr(course->owner, names.put_outputs);
    PyObject *done = put ? PyObject_CallFunctionObjArgs(put, ticket, given, NULL) : NULL;
    Py_XDECREF(put);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Record what the call of (ticket, args, result) gave. */
static PyObject *course_give(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    Course *course = (Course *)self;
    if (num_args != 3 || !PyTuple_Check(args[0]) || PyTuple_Size(args[0]) != 3 ||
        (PyObject *)Py_TYPE(PyTuple_GetItem(args[0], 0)) != known_type) {
        PyErr_SetString(PyExc_TypeError, "give(ticket, args, result)");
        return NULL;
    }
    Known *known = (Known *)PyTuple_GetItem(args[0], 0);
    PyObject *given = known->gives_first ? PyTuple_GetItem(args[1], 0) : args[2];
    if (!given || (course->records_outputs && give(course, args[0], given) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* ---- calls of modules ---- */

/* The dict that `all` has for `key`, borrowed; a new one where it has none. */
static PyObject *part_of(PyObject *all, PyObject *key)
{
    PyObject *found = PyDict_GetItemWithError(all, key);
    if (found || PyErr_Occurred())
        return found;
    PyObject *made = PyDict_New();
    int failed = !made || PyDict_SetItem(all, key, made) < 0;
    Py_XDECREF(made); /* `all` has it */
    return failed ? NULL : made;
}

/* A Scope as `models.Scope.__init__` makes it, without a line of Python. */
static PyObject *new_scope(Course *course, PyObject *path, long call)
{
    PyObject *name = PyUnicode_GetLength(path) ? path : course->root_name;
    PyObject *prefix =
        call ? PyUnicode_FromFormat("%U@%ld", name, call) : Py_NewRef(name);
    PyObject *ops = prefix ? part_of(course->ops, prefix) : NULL;
    PyObject *known = ops ? part_of(course->knowns, prefix) : NULL;
    PyObject *number = known ? PyLong_FromLong(call) : NULL;
    PyObject *numbers = number ? PyDict_New() : NULL;
    PyTypeObject *type = (PyTypeObject *)course->scope_type;
    PyObject *scope = numbers ? ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0) : NULL;
    if (scope && (PyObject_SetAttr(scope, names.path, path) < 0 ||
                  PyObject_SetAttr(scope, names.call, number) < 0 ||
                  PyObject_SetAttr(scope, names.prefix, prefix) < 0 ||
                  PyObject_SetAttr(scope, names.ops, ops) < 0 ||
                  PyObject_SetAttr(scope, names.known, known) < 0 ||
                  PyObject_SetAttr(scope, names.numbers, numbers) < 0))
        Py_CLEAR(scope);
    Py_XDECREF(prefix);
    Py_XDECREF(number);
    Py_XDECREF(numbers);
    return scope;
}

static int count_calls(Course *course, PyObject *path, long count)
{
    PyObject *number = PyLong_FromLong(count);
    int failed = !number || PyDict_SetItem(course->path_calls, path, number) < 0;
    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* Open the scope of the next call of the module at `path`; gives its number. */
static long open_scope(Course *course, PyObject *path)
{
    PyObject *ran = PyDict_GetItemWithError(course->path_calls, path);
    long call = ran ? PyLong_AsLong(ran) : 0;
    PyObject *scope = PyErr_Occurred() ? NULL : new_scope(course, path, call);
    PyObject *here = scope ? PyObject_GetAttr(course->scopes, names.here) : NULL;
    int failed = !here || count_calls(course, path, call + 1) < 0 ||
                 PyList_Append(course->outer, here) < 0;
    if (!failed)
        failed = PyObject_SetAttr(course->scopes, names.here, scope) < 0;
    Py_XDECREF(scope);
    Py_XDECREF(here);
    return failed ? -1 : call;
}

static int close_scope(Course *course)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_ssize_t count = PyList_Size(course->outer);
    PyObject *outer = count > 0 ? Py_NewRef(PyList_GetItem(course->outer, count - 1)) : NULL;
    int failed = !outer || PyList_SetSlice(course->outer, count - 1, count, NULL) < 0 ||
                 PyObject_SetAttr(course->scopes, names.here, outer) < 0;
    Py_XDECREF(outer);
    if (failed && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "no scope is open");
    if (type) {
        PyErr_Clear();
        PyErr_Restore(type, error, trace);
    }
    return failed ? -1 : 0;
}

/* The op of a call of `module` and its path, borrowed; NULL where the way in Python has more to
   do: it is not known, not selected, or has weights to be recorded. */
static PyObject *module_op(Course *course, PyObject *module, PyObject **path)
{
    PyObject *model = PyObject_GetAttr(course->whole, names.model);
    PyObject *paths = model ? PyObject_GetAttr(model, names.paths) : NULL;
    PyObject *id = paths ? PyLong_FromVoidPtr(module) : NULL, *op = NULL;
    *path = id ? PyDict_GetItemWithError(paths, id) : NULL;
    if (*path && !PyDict_Contains(course->weights, *path))
        op = PyDict_GetItemWithError(course->module_ops, *path);
    Py_XDECREF(model);
    Py_XDECREF(paths); /* the model has it */
    Py_XDECREF(id);
    return op == Py_None ? NULL : op;
}

/* Record that `module` is called, in a scope that is open then; None where its like is not known,
   and nothing is open. */
static PyObject *entered(Course *course, PyObject *module, PyObject *args, PyObject *kwargs)
{
    PyObject *path, *ticket = NULL, *op, *guards[2] = {NULL, NULL};
    if (course->is_over || !is_usual(course, 1) || !(op = module_op(course, module, &path)))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    Py_INCREF(op);
    Py_INCREF(path);
    if (set_aside(guards) == 0 && acquire(course)) {
        long call = open_scope(course, path);
        if (call >= 0) {
            rest(course);
            ticket = take(course, (PyObject *)Py_TYPE(module), args, kwargs);
            go_on(course);
            if (ticket && !PyDict_GetItem(course->first_calls, op) &&
                PyDict_SetItem(course->first_calls, op, ticket) < 0)
                Py_CLEAR(ticket);
            if (!ticket && !close_scope(course) && !PyErr_Occurred())
                count_calls(course, path, call);
        }
        release(course);
    }
    take_up(guards);
    Py_DECREF(op);
    Py_DECREF(path);
    return ticket || PyErr_Occurred() ? ticket : Py_NewRef(Py_None);
}

/* Record what a call of a module gave. */
static int left(Course *course, PyObject *ticket, PyObject *given)
{
    if (course->is_over || !course->records_outputs) {
        if (!course->is_over)
            return 0;
        PyObject *done = PyObject_CallMethodObjArgs(course->owner, names.leave, ticket, given, NULL);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    PyObject *guards[2] = {NULL, NULL};
    int done = set_aside(guards) < 0 ? -1 : give(course, ticket, given);
    take_up(guards);
    return done;
}

/* Call a module, and record the call; by the way in Python if its like is not known. Handlers of
   signals run within the module alone: no line of Python stands around it. */
static PyObject *call_module(ModuleCall *self, PyObject *args, PyObject *named)
{
    Course *course = (Course *)self->course;
    PyObject *before = begin_work(), *slowly = NULL, *result = NULL;
    if (!before)
        return NULL;
    PyObject *ticket = entered(course, self->module, args, named);
    if (ticket == Py_None)
        slowly = PyObject_CallFunctionObjArgs(course->slow, self->module, self->run, NULL);
    end_work(before);
    if (ticket == Py_None) {
        result = slowly ? PyObject_Call(slowly, args, named) : NULL;
    } else if (ticket) {
        result = PyObject_Call(self->run, args, named);
        if (close_scope(course) < 0)
            Py_CLEAR(result);
        before = result ? begin_work() : NULL;
        if (before && left(course, ticket, result) < 0)
            Py_CLEAR(result);
        if (before)
            end_work(before);
    }
    Py_XDECREF(ticket);
    Py_XDECREF(slowly);
    return result;
}

static PyObject *module_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *words)
{
    Py_ssize_t count = (Py_ssize_t)(flags & ~OFFSET_FLAG);
    PyObject *given = tuple_of(args, count), *named = given ? dict_of(words, args + count) : NULL;
    Py_INCREF(object);
    PyObject *result = named ? call_module((ModuleCall *)object, given, named) : NULL;
    Py_DECREF(object);
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

static PyObject *module_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *course, *module, *run;
    if (kwargs || !PyArg_ParseTuple(args, "O!OO", course_type, &course, &module, &run))
        return kwargs ? PyErr_Format(PyExc_TypeError, "ModuleCall takes no keywords") : NULL;
    ModuleCall *self =
        (ModuleCall *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->call = module_call;
        self->course = Py_NewRef(course);
        self->module = Py_NewRef(module);
        self->run = Py_NewRef(run);
    }
    return (PyObject *)self;
}

/* Be told of the step whose modules are called: (step, Scope, name of the root, way in Python). */
static PyObject *course_follow(PyObject *object, PyObject *args)
{
    Course *self = (Course *)object;
    PyObject *step, *scope, *root, *slow;
    if (!PyArg_ParseTuple(args, "OOUO", &step, &scope, &root, &slow))
        return NULL;
    PyObject *model = PyObject_GetAttrString(step, "model");
    PyObject *mark = model ? PyUnicode_FromString("") : NULL;
    self->whole = Py_NewRef(step);
    self->scope_type = Py_NewRef(scope);
    self->root_name = Py_NewRef(root);
    self->slow = Py_NewRef(slow);
    self->first_calls = PyObject_GetAttrString(step, "_first_calls");
    self->ops = model ? PyObject_GetAttrString(model, "ops") : NULL;
    self->module_ops = self->ops && mark ? part_of(self->ops, mark) : NULL;
    Py_XINCREF(self->module_ops);
    self->knowns = PyObject_GetAttrString(self->scopes, "_knowns");
    self->outer = PyObject_GetAttrString(self->scopes, "_outer");
    self->path_calls = PyObject_GetAttrString(self->scopes, "_calls");
    PyObject *weighing = PyObject_GetAttrString(step, "weighing");
    self->weights = weighing ? PyObject_GetAttrString(weighing, "left") : NULL;
    Py_XDECREF(weighing);
    Py_XDECREF(model);
    Py_XDECREF(mark);
    if (PyErr_Occurred())
        return NULL;
    int fits = PyDict_Check(self->first_calls) && PyDict_Check(self->knowns) &&
               PyList_Check(self->outer) && PyDict_Check(self->path_calls) &&
               PyDict_Check(self->weights);
    return fits ? Py_NewRef(Py_None) : PyErr_Format(PyExc_TypeError, "no step");
}

/* ---- parameters and buffers ---- */

static int note(Versions *self, unsigned long long word)
{
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 1024;
        unsigned long long *words = PyMem_Realloc(self->words, room * sizeof *words);
        if (!words) {
            PyErr_NoMemory();
            return -1;
        }
        self->words = words;
        self->room = room;
    }
    if (self->count >= self->known || self->words[self->count] != word)
        self->is_same = 0;
    self->words[self->count++] = word;
    return 0;
}

/* Note where each tensor of `found` lies and how often it was written; 0 if one is odd. */
static int note_tensors(Versions *self, PyObject *found)
{
    PyObject *name, *tensor;
    Py_ssize_t at = 0;
    while (PyDict_Next(found, &at, &name, &tensor)) {
        if (tensor == Py_None)
            continue;
        PyObject *type = (PyObject *)Py_TYPE(tensor);
        if (type != torch.tensor && type != torch.parameter)
            return 0;
        PyObject *address = call1(torch.data_ptr, tensor);
        PyObject *version = address ? PyObject_GetAttr(tensor, names.version) : NULL;
        int done = version && !note(self, (unsigned long long)(size_t)name) &&
                   !note(self, (unsigned long long)(size_t)tensor) &&
                   !note(self, PyLong_AsUnsignedLongLong(address)) &&
                   !note(self, PyLong_AsUnsignedLongLong(version));
        Py_XDECREF(address);
        Py_XDECREF(version);
        if (!done || PyErr_Occurred())
            return PyErr_Clear(), 0; /* an inference tensor, or one without elements of its own */
    }
    return 1;
}

static int note_module(Versions *self, PyObject *module, int depth)
{
    if (note(self, (unsigned long long)(size_t)module) < 0 || depth > MOST_DEPTH)
        return 0;
    PyObject *parts[3] = {names.parameters, names.buffers, names.modules};
    int done = 1;
    for (int i = 0; done && i < 3; i++) {
        PyObject *found = PyObject_GetAttr(module, parts[i]);
        done = found && PyDict_Check(found);
        if (done && i < 2)
            done = note_tensors(self, found);
        PyObject *name, *child;
        Py_ssize_t at = 0;
        while (done && i == 2 && PyDict_Next(found, &at, &name, &child))
            if (child != Py_None)
                done = note(self, (unsigned long long)(size_t)name) == 0 &&
                       note_module(self, child, depth + 1);
        Py_XDECREF(found);
    }
    return done;
}

/* Whether all modules, parameters and buffers of a model are those of the last time, and nobody
   has written to them; False where one of them is odd. Who asks holds the model. */
static PyObject *versions_same(PyObject *object, PyObject *root)
{
    Versions *self = (Versions *)object;
    self->known = self->count;
    self->count = 0;
    self->is_same = 1;
    int done = note_module(self, root, 0);
    int same = done && self->is_same && self->count == self->known;
    if (!done)
        self->count = 0; /* the next time is not the same either */
    PyErr_Clear();
    return PyBool_FromLong(same);
}

static PyObject *versions_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void versions_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyMem_Free(((Versions *)object)->words);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- gradients ---- */

/* Whether a tensor that is as `one` says is as `other` says: 1, 0, or -1 with an exception. */
static int looks_alike(Look *one, Look *other)
{
    if (!other->form || other->type != one->type || other->keys != one->keys ||
        other->offset != one->offset)
        return 0;
    int same = PyObject_RichCompareBool(one->device, other->device, Py_EQ);
    return same <= 0 ? same : PyObject_RichCompareBool(one->geometry, other->geometry, Py_EQ);
}

typedef struct {
    PyObject *order, *planned;
    Look *look;
} Target;

static void let_go(Target *target)
{
    Py_CLEAR(target->order);
    Py_CLEAR(target->planned);
    Py_CLEAR(target->look);
}

/* The op and number of a call, or of what a ticket is for, a new reference; and its order. */
static PyObject *name_of(PyObject *call, PyObject **order)
{
    if (PyTuple_Check(call)) {
        PyObject *known = PyTuple_GetItem(call, 0);
        *order = known ? PyTuple_GetItem(call, 2) : NULL;
        if (!*order || (PyObject *)Py_TYPE(known) != known_type)
            return *order ? PyErr_Format(PyExc_TypeError, "put_at: no ticket") : NULL;
        Py_INCREF(*order);
        return Py_NewRef(((Known *)known)->name);
    }
    PyObject *op = PyObject_GetAttr(call, names.op);
    PyObject *number = op ? PyObject_GetAttr(call, names.call) : NULL;
    *order = number ? PyObject_GetAttr(call, names.order) : NULL;
    PyObject *name = *order ? PyTuple_Pack(2, op, number) : NULL;
    Py_XDECREF(op);
    Py_XDECREF(number);
    return name;
}

/* What is known of the slot that (call or ticket, slot) names: 1, 0, or -1 with an exception. */
static int find_target(PyObject *named, PyObject *looks, PyObject *calls, Target *target)
{
    PyObject *call = PyTuple_GetItem(named, 0), *slot = call ? PyTuple_GetItem(named, 1) : NULL;
    if (!slot)
        return -1;
    PyObject *name = name_of(call, &target->order);
    PyObject *where = name ? PyTuple_Pack(3, PyTuple_GetItem(name, 0), PyTuple_GetItem(name, 1),
                                          slot)
                           : NULL;
    PyObject *look = where ? PyDict_GetItemWithError(looks, where) : NULL;
    PyObject *planned = look ? PyDict_GetItemWithError(calls, name) : NULL;
    int is_known = planned && (PyObject *)Py_TYPE(look) == look_type;
    if (is_known) {
        target->look = (Look *)Py_NewRef(look);
        target->planned = Py_NewRef(planned);
    }
    Py_XDECREF(name);
    Py_XDECREF(where);
    return PyErr_Occurred() ? -1 : is_known;
}

/* Lay down `tensor` at the first target, or a link at one after it: 1, 0, or -1. */
static int put_target(Course *course, Target *target, Look *first, PyObject *tensor,
                      PyObject **lies)
{
    if (!first) {
        Outcome laid = lay(course, target->planned, target->order, target->look, tensor, lies);
        return laid == FAILED ? -1 : laid == LAID;
    }
    int same = looks_alike(first, target->look);
    if (same <= 0)
        return same;
    PyObject *done =
        PyObject_CallFunctionObjArgs(course->lay_link, target->planned, target->look->slot,
                                     target->look->form, target->order, *lies, NULL);
    int laid = !done ? -1 : done != Py_None;
    Py_XDECREF(done);
    course->num_values += laid > 0;
    course->num_links += laid > 0;
    return laid;
}

/* Record a gradient at as many of `targets` as are known, in their order; gives their number, or -1
   with an exception, and where its bytes lie, a new reference. The outlet's lock is held. */
static Py_ssize_t put_known(Course *course, PyObject *targets, PyObject *tensor, PyObject *looks,
                            PyObject *calls, PyObject **lies)
{
    PyObject *first = NULL;
    Py_ssize_t count = 0;
    int laid = 1;
    rest(course);
    while (laid > 0 && count < PyList_Size(targets)) {
        Target target = {NULL, NULL, NULL};
        PyObject *named = Py_NewRef(PyList_GetItem(targets, count));
        laid = find_target(named, looks, calls, &target);
        if (laid > 0)
            laid = put_target(course, &target, (Look *)first, tensor, lies);
        if (laid > 0 && !count++)
            first = Py_NewRef((PyObject *)target.look);
        let_go(&target);
        Py_DECREF(named);
    }
    go_on(course);
    Py_XDECREF(first);
    if (!count)
        Py_CLEAR(*lies);
    return laid < 0 ? -1 : count;
}

/* The same of (targets, tensor, looks, calls); gives (number, where its bytes lie, or None). */
static PyObject *course_put_at(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    if (num_args != 4 || !PyList_Check(args[0]) || !PyDict_Check(args[2]) || !PyDict_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "put_at(targets, tensor, looks, calls)");
        return NULL;
    }
    PyObject *lies = NULL;
    Py_ssize_t count = put_known((Course *)self, args[0], args[1], args[2], args[3], &lies);
    PyObject *found = count < 0 ? NULL : Py_BuildValue("(nO)", count, lies ? lies : Py_None);
    Py_XDECREF(lies);
    return found;
}

/* Ask once, when its first gradient has come, by what those of a step are recorded at once: (course,
   writes, looks, first calls, counts, number of the step), or None. Code of Python runs here. */
static int find_course(Backward *self)
{
    PyObject *found = self->course ? Py_NewRef(Py_None) : PyObject_CallNoArgs(self->find);
    PyObject *course, *writes, *looks, *first_calls, *counts, *number;
    if (!found)
        return -1;
    int done = 0;
    if (self->course) { /* it is known, perhaps since another thread has asked */
    } else if (found == Py_None) {
        self->course = Py_NewRef(Py_None);
    } else if (PyArg_ParseTuple(found, "O!O!O!O!OO", course_type, &course, &PyDict_Type, &writes,
                                &PyDict_Type, &looks, &PyDict_Type, &first_calls, &counts,
                                &number)) {
        self->course = Py_NewRef(course);
        self->writes = Py_NewRef(writes);
        self->looks = Py_NewRef(looks);
        self->first_calls = Py_NewRef(first_calls);
        self->counts = Py_NewRef(counts);
        self->number = Py_NewRef(number);
    } else {
        done = -1;
    }
    Py_DECREF(found);
    return done;
}

/* The calls of this step, while it is the one that is being written, a new reference. */
static PyObject *calls_now(Backward *self)
{
    PyObject *laid = PyObject_GetAttr(((Course *)self->course)->desk, names.step), *calls = NULL;
    if (laid && laid != Py_None &&
        is_object(self->number, PyObject_GetAttr(laid, names.number)) &&
        is_object(self->model, PyObject_GetAttr(laid, names.model)))
        calls = PyObject_GetAttr(laid, names.calls);
    Py_XDECREF(laid);
    if (calls && !PyDict_Check(calls))
        Py_CLEAR(calls);
    return calls;
}

static int add_count(PyObject *counts, PyObject *name, unsigned long long *more)
{
    if (!*more)
        return 0;
    PyObject *before = PyObject_GetAttr(counts, name), *number = PyLong_FromUnsignedLongLong(*more);
    PyObject *sum = before && number ? PyNumber_Add(before, number) : NULL;
    int done = sum ? PyObject_SetAttr(counts, name, sum) : -1;
    *more = 0;
    Py_XDECREF(before);
    Py_XDECREF(number);
    Py_XDECREF(sum);
    return done;
}

/* Record a gradient at as many of `targets` as can be at once; as `put_known`. */
static Py_ssize_t put_at_once(Backward *self, PyObject *targets, PyObject *tensor, PyObject **lies)
{
    if (find_course(self) < 0)
        return -1;
    Course *course = (Course *)self->course;
    if (self->course == Py_None || PyDict_Size(self->writes) ||
        taken(PyObject_CallNoArgs(torch.num_modes)) != 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *sink = PyObject_GetAttr(course->outlet, names.sink);
    Py_XDECREF(sink);
    PyObject *calls = sink == course->sink ? calls_now(self) : NULL;
    if (!calls || !acquire(course)) {
        Py_XDECREF(calls);
        return PyErr_Occurred() ? -1 : 0;
    }
    Py_ssize_t count = put_known(course, targets, tensor, self->looks, calls, lies);
    if (count >= 0 && (add_count(self->counts, names.values, &course->num_values) < 0 ||
                       add_count(self->counts, names.links, &course->num_links) < 0 ||
                       add_count(self->counts, names.nbytes, &course->nbytes) < 0))
        count = -1;
    release(course);
    Py_DECREF(calls);
    return count;
}

/* Record a gradient at `targets`; by the way in Python from the first that is not known. */
static PyObject *put_gradient(Backward *self, PyObject *targets, PyObject *tensor)
{
    PyObject *lies = NULL, *done = NULL;
    Py_ssize_t count = put_at_once(self, targets, tensor, &lies);
    if (count >= 0 && count == PyList_Size(targets)) {
        done = Py_NewRef(Py_None);
    } else if (count >= 0) {
        PyObject *number = PyLong_FromSsize_t(count);
        if (number)
            done = PyObject_CallFunctionObjArgs(self->put, targets, tensor, number,
                                                lies ? lies : Py_None, NULL);
        Py_XDECREF(number);
    }
    Py_XDECREF(lies);
    return done;
}

/* The only argument of a hook, borrowed. */
static PyObject *only(PyObject *args, PyObject *kwargs)
{
    if (PyTuple_Size(args) == 1 && !(kwargs && PyDict_Size(kwargs)))
        return PyTuple_GetItem(args, 0);
    PyErr_SetString(PyExc_TypeError, "a hook takes one tensor");
    return NULL;
}

/* Take a hook off its tensor, if it is still there: 1, 0, or -1 with an exception. */
static int take_off(Backward *back, PyObject *targets)
{
    PyObject *number = PyLong_FromVoidPtr(targets);
    PyObject *table = number ? PyDict_GetItemWithError(back->hooked, number) : NULL;
    int done = table ? 1 : PyErr_Occurred() ? -1 : 0;
    if (table) {
        PyObject *hooks = Py_NewRef(PyWeakref_GetObject(table));
        int is_in = hooks == Py_None ? 0 : PySequence_Contains(hooks, number);
        if (is_in < 0 || PyDict_DelItem(back->hooked, number) < 0 ||
            (is_in && PyObject_DelItem(hooks, number) < 0))
            done = -1;
        Py_DECREF(hooks);
    }
    Py_XDECREF(number);
    return done;
}

/* The gradient of a tensor has come: what Watches._fired does. */
static PyObject *tensor_hook(PyObject *object, PyObject *args, PyObject *kwargs)
{
    PyObject *grad = only(args, kwargs), *done = NULL;
    if (!grad || grad == Py_None) /* compiled code gives none where nothing was computed from it */
        return grad ? Py_NewRef(grad) : NULL;
    Backward *back = (Backward *)Py_NewRef(((TensorHook *)object)->back);
    PyObject *targets = Py_NewRef(((TensorHook *)object)->targets);
    int is_there = take_off(back, targets);
    if (is_there > 0 && PyDict_SetItem(back->running, back->model, (PyObject *)back) == 0)
        done = put_gradient(back, targets, grad);
    else if (is_there == 0)
        done = Py_NewRef(Py_None);
    Py_DECREF((PyObject *)back);
    Py_DECREF(targets);
    return done;
}

/* What a parameter's gradient is recorded at: the call of its module, and who took it, a new list;
   NULL without an exception where the way in Python must tell of the module's call first. */
static PyObject *parameter_targets(ParameterHook *self, Backward *back, PyObject *parameter)
{
    PyObject *number = PyLong_FromVoidPtr(parameter);
    PyObject *takers = number ? PyDict_GetItemWithError(back->takers, number) : NULL;
    Py_XDECREF(number);
    PyObject *targets = PyErr_Occurred() ? NULL : PyList_New(0);
    if (targets && self->op != Py_None) {
        PyObject *first = PyDict_GetItemWithError(back->first_calls, self->op);
        PyObject *target = first ? PyTuple_Pack(2, first, self->slot) : NULL;
        if (!target || PyList_Append(targets, target) < 0)
            Py_CLEAR(targets);
        Py_XDECREF(target);
    }
    Py_ssize_t count = targets ? PyList_Size(targets) : 0;
    if (targets && takers && PyList_SetSlice(targets, count, count, takers) < 0)
        Py_CLEAR(targets);
    return targets;
}

/* A parameter has its gradient: what Gradients.put_parameter does of a step whose gradients are
   recorded at once; 1, 0 where that must do it, or -1 with an exception. */
static int put_parameter(ParameterHook *self, Backward *back, PyObject *parameter)
{
    if (find_course(back) < 0)
        return -1;
    int before = back->course == Py_None ? -1 : PySet_Contains(back->recorded, self->name);
    if (before)
        return PyErr_Occurred() ? -1 : before > 0;
    int is_usual = taken(PyObject_CallNoArgs(torch.num_modes)) == 0;
    PyObject *grad = is_usual ? PyObject_GetAttr(parameter, names.grad) : NULL;
    PyObject *targets = grad && grad != Py_None ? parameter_targets(self, back, parameter) : NULL;
    PyObject *done = NULL;
    if (targets && PySet_Add(back->recorded, self->name) == 0)
        done = put_gradient(back, targets, grad);
    int is_done = done || grad == Py_None;
    Py_XDECREF(done);
    Py_XDECREF(targets);
    Py_XDECREF(grad);
    return PyErr_Occurred() ? -1 : is_done;
}

static PyObject *parameter_hook(PyObject *object, PyObject *args, PyObject *kwargs)
{
    ParameterHook *self = (ParameterHook *)object;
    PyObject *parameter = only(args, kwargs);
    if (!parameter)
        return NULL;
    PyObject *back = PyDict_GetItemWithError(self->running, self->model);
    if (!back && !PyErr_Occurred())
        back = PyDict_GetItemWithError(self->latest, self->model);
    int done = PyErr_Occurred() ? -1 : 0;
    if (back && (PyObject *)Py_TYPE(back) == backward_type) {
        Py_INCREF(back);
        done = put_parameter(self, (Backward *)back, parameter);
        Py_DECREF(back);
    }
    if (done)
        return done < 0 ? NULL : Py_NewRef(Py_None);
    return call1(self->slow, parameter);
}

/* ---- types ---- */

#define EACH(...)                                                                               \
    PyObject **held[] = {__VA_ARGS__};                                                          \
    const size_t num_held = sizeof held / sizeof *held;

#define OBJECT(TYPE, NAME, ...)                                                                 \
    static int NAME##_traverse(PyObject *object, visitproc visit, void *arg)                    \
    {                                                                                           \
        TYPE *self = (TYPE *)object;                                                            \
        EACH(__VA_ARGS__)                                                                       \
        Py_VISIT(Py_TYPE(object));                                                              \
        for (size_t i = 0; i < num_held; i++)                                                   \
            Py_VISIT(*held[i]);                                                                 \
        return 0;                                                                               \
    }                                                                                           \
    static int NAME##_clear(PyObject *object)                                                   \
    {                                                                                           \
        TYPE *self = (TYPE *)object;                                                            \
        EACH(__VA_ARGS__)                                                                       \
        for (size_t i = 0; i < num_held; i++)                                                   \
            Py_CLEAR(*held[i]);                                                                 \
        return 0;                                                                               \
    }                                                                                           \
    static void NAME##_free(PyObject *object)                                                   \
    {                                                                                           \
        PyTypeObject *type = Py_TYPE(object);                                                   \
        PyObject_GC_UnTrack(object);                                                            \
        NAME##_clear(object);                                                                   \
        ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);                                   \
        Py_DECREF(type);                                                                        \
    }

OBJECT(Look, look, &self->slot, &self->where, &self->type, &self->dtype, &self->device,
       &self->geometry, &self->itemsize, &self->form, &self->key, &self->stored, &self->kept_form,
       &self->again, &self->grad_slot)
OBJECT(Known, known, &self->call, &self->name, &self->texts, &self->args, &self->kwargs,
       &self->result, &self->filename, &self->inputs, &self->outputs)
OBJECT(Course, course, &self->owner, &self->scopes, &self->orders, &self->outlet, &self->sink,
       &self->desk, &self->step, &self->acquire, &self->release, &self->seen, &self->storages,
       &self->blanks, &self->layouts, &self->lay_call, &self->lay_value, &self->lay_link,
       &self->whole, &self->scope_type, &self->root_name, &self->slow, &self->first_calls,
       &self->ops, &self->module_ops, &self->knowns, &self->outer, &self->path_calls,
       &self->weights, &self->made, &self->watched, &self->takers, &self->targets, &self->calls,
       &self->origins, &self->back)
OBJECT(ModuleCall, module_call, &self->course, &self->module, &self->run)
OBJECT(Backward, backward, &self->gradients, &self->step, &self->model, &self->hooked,
       &self->running, &self->recorded, &self->takers, &self->find, &self->put, &self->course,
       &self->writes, &self->looks, &self->first_calls, &self->counts, &self->number)
OBJECT(ParameterHook, parameter_hook, &self->running, &self->latest, &self->model, &self->name,
       &self->op, &self->slot, &self->slow)

/* There are as many as tensors: the collector is not shown them, and they are in no circle, since
   nothing that a step holds leads to a tensor. */
static void tensor_hook_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((TensorHook *)object)->back);
    Py_CLEAR(((TensorHook *)object)->targets);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void held_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *type_of, *error, *trace;
    PyErr_Fetch(&type_of, &error, &trace);
    PyObject *done = call1(torch.free_weak_ref, ((Held *)object)->reference);
    if (!done)
        PyErr_WriteUnraisable(NULL);
    Py_XDECREF(done);
    Py_DECREF(((Held *)object)->reference);
    PyErr_Restore(type_of, error, trace);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyObject *new_object(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static PyObject *look_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *slot, *where;
    static char *words[] = {"slot", "where", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", words, &slot, &where))
        return NULL;
    Look *self = (Look *)new_object(type);
    if (self) {
        self->slot = Py_NewRef(slot);
        self->where = Py_NewRef(where);
    }
    return (PyObject *)self;
}

/* Remember what such a tensor looks like; without arguments: forget it. */
static PyObject *look_settle(PyObject *object, PyObject *args)
{
    Look *self = (Look *)object;
    PyObject *type = NULL, *dtype, *device, *geometry, *itemsize, *form, *keys;
    long long offset, nbytes;
    int counted, is_host, is_dense;
    if (PyTuple_Size(args) &&
        !PyArg_ParseTuple(args, "OOOO!OOO!LLppp", &type, &dtype, &device, &PyTuple_Type, &geometry,
                          &itemsize, &form, &PyLong_Type, &keys, &offset, &nbytes, &counted,
                          &is_host, &is_dense))
        return NULL;
    PyObject *slot = Py_NewRef(self->slot), *where = Py_NewRef(self->where), *key = self->key;
    Py_XINCREF(key);
    look_clear(object);
    self->key = key;
    self->slot = slot;
    self->where = where;
    if (!type)
        Py_RETURN_NONE;
    self->shape = PyTuple_GetItem(geometry, 0);
    self->stride = PyTuple_GetItem(geometry, 1);
    if (!self->stride || !PyTuple_Check(self->shape) || !PyTuple_Check(self->stride))
        return PyErr_Format(PyExc_TypeError, "settle: no geometry");
    self->keys = PyLong_AsUnsignedLongLong(keys);
    self->offset = offset;
    self->nbytes = nbytes;
    self->end = offset * PyLong_AsLongLong(itemsize) + nbytes;
    if (PyErr_Occurred())
        return NULL;
    self->counted = (char)counted;
    self->is_host = (char)is_host;
    self->is_dense = (char)is_dense;
    self->takes_gaps = 0;
    self->dtype = Py_NewRef(dtype);
    self->device = Py_NewRef(device);
    self->geometry = Py_NewRef(geometry);
    self->itemsize = Py_NewRef(itemsize);
    self->form = Py_NewRef(form);
    self->type = Py_NewRef(type);
    Py_RETURN_NONE;
}

static PyObject *known_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *call, *name, *looks, *looks_named, *result, *filename, *inputs, *outputs;
    long line;
    int swapped, gives_first;
    if (kwargs || !PyArg_ParseTuple(args, "OO!O!O!OOlO!O!pp", &call, &PyTuple_Type, &name,
                                    &PyTuple_Type, &looks, &PyTuple_Type, &looks_named, &result,
                                    &filename, &line, &PyList_Type, &inputs, &PyList_Type,
                                    &outputs, &swapped, &gives_first))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Known takes no keywords") : NULL;
    Known *self = (Known *)new_object(type);
    if (!self)
        return NULL;
    self->call = Py_NewRef(call);
    self->name = Py_NewRef(name);
    self->args = Py_NewRef(looks);
    self->kwargs = Py_NewRef(looks_named);
    self->result = Py_NewRef(result);
    self->filename = Py_NewRef(filename);
    self->inputs = Py_NewRef(inputs);
    self->outputs = Py_NewRef(outputs);
    self->line = line;
    self->swapped = (char)swapped;
    self->gives_first = (char)gives_first;
    self->texts = PyDict_New();
    if (!self->texts)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *course_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *owner, *scopes, *orders, *outlet, *desk, *lock, *seen, *storages, *blanks, *layouts;
    int inputs, outputs, condenses, remembers;
    if (kwargs || !PyArg_ParseTuple(args, "OOOOOOO!O!O!O!pppp", &owner, &scopes, &orders, &outlet,
                                    &desk, &lock, &PyDict_Type, &seen, &PyDict_Type, &storages,
                                    &PyDict_Type, &blanks, &PyDict_Type, &layouts, &inputs,
                                    &outputs, &condenses, &remembers))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Course takes no keywords") : NULL;
    Course *self = (Course *)new_object(type);
    if (!self)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->scopes = Py_NewRef(scopes);
    self->orders = Py_NewRef(orders);
    self->outlet = Py_NewRef(outlet);
    self->desk = Py_NewRef(desk);
    self->seen = Py_NewRef(seen);
    self->storages = Py_NewRef(storages);
    self->blanks = Py_NewRef(blanks);
    self->layouts = Py_NewRef(layouts);
    self->step = Py_NewRef(Py_None);
    self->made = PyDict_New();
    self->sink = PyObject_GetAttr(outlet, names.sink);
    self->acquire = PyObject_GetAttrString(lock, "acquire");
    self->release = PyObject_GetAttrString(lock, "release");
    self->lay_call = PyObject_GetAttrString(desk, "lay_call");
    self->lay_value = PyObject_GetAttrString(desk, "lay_value");
    self->lay_link = PyObject_GetAttrString(desk, "lay_link");
    self->thread = PyThread_get_thread_ident();
    self->records_inputs = (char)inputs;
    self->records_outputs = (char)outputs;
    self->condenses = (char)condenses;
    self->remembers = (char)remembers;
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *backward_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *gradients, *step, *model, *hooked, *running, *recorded, *takers, *find, *put;
    if (kwargs || !PyArg_ParseTuple(args, "OOUO!O!O!O!OO", &gradients, &step, &model, &PyDict_Type,
                                    &hooked, &PyDict_Type, &running, &PySet_Type, &recorded,
                                    &PyDict_Type, &takers, &find, &put))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Backward takes no keywords") : NULL;
    Backward *self = (Backward *)new_object(type);
    if (!self)
        return NULL;
    self->gradients = Py_NewRef(gradients);
    self->step = Py_NewRef(step);
    self->model = Py_NewRef(model);
    self->hooked = Py_NewRef(hooked);
    self->running = Py_NewRef(running);
    self->recorded = Py_NewRef(recorded);
    self->takers = Py_NewRef(takers);
    self->find = Py_NewRef(find);
    self->put = Py_NewRef(put);
    return (PyObject *)self;
}

static PyObject *parameter_hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *running, *latest, *model, *name, *op, *slot, *slow;
    if (kwargs || !PyArg_ParseTuple(args, "O!O!UUOUO", &PyDict_Type, &running, &PyDict_Type, &latest,
                                    &model, &name, &op, &slot, &slow))
        return kwargs ? PyErr_Format(PyExc_TypeError, "ParameterHook takes no keywords") : NULL;
    ParameterHook *self = (ParameterHook *)new_object(type);
    if (!self)
        return NULL;
    self->running = Py_NewRef(running);
    self->latest = Py_NewRef(latest);
    self->model = Py_NewRef(model);
    self->name = Py_NewRef(name);
    self->op = Py_NewRef(op);
    self->slot = Py_NewRef(slot);
    self->slow = Py_NewRef(slow);
    return (PyObject *)self;
}

#define MEMBER(type, name, kind, flags) {#name, kind, offsetof(type, name), flags, NULL}

static PyMemberDef look_members[] = {
    MEMBER(Look, slot, T_OBJECT, READONLY), MEMBER(Look, key, T_OBJECT, 0),
    MEMBER(Look, geometry, T_OBJECT, READONLY), MEMBER(Look, stored, T_OBJECT, 0),
    MEMBER(Look, kept_form, T_OBJECT, 0), MEMBER(Look, form, T_OBJECT, READONLY),
    MEMBER(Look, again, T_OBJECT, 0), MEMBER(Look, kept_nbytes, T_LONGLONG, 0),
    MEMBER(Look, takes_gaps, T_BOOL, 0),
    {NULL, 0, 0, 0, NULL}};
static PyMemberDef known_members[] = {
    MEMBER(Known, call, T_OBJECT, READONLY), MEMBER(Known, name, T_OBJECT, READONLY),
    MEMBER(Known, texts, T_OBJECT, READONLY), {NULL, 0, 0, 0, NULL}};
static PyMemberDef course_members[] = {
    MEMBER(Course, step, T_OBJECT, 0),
    MEMBER(Course, is_over, T_BOOL, 0),
    MEMBER(Course, num_calls, T_ULONGLONG, 0),
    MEMBER(Course, num_values, T_ULONGLONG, 0),
    MEMBER(Course, num_links, T_ULONGLONG, 0),
    MEMBER(Course, nbytes, T_ULONGLONG, 0),
    {NULL, 0, 0, 0, NULL}};

#define FAST(name) (PyCFunction)(void (*)(void))name, METH_FASTCALL

static PyMethodDef look_methods[] = {
    {"settle", look_settle, METH_VARARGS, "Remember what such a tensor looks like, or forget it."},
    {NULL, NULL, 0, NULL}};
static PyObject *course_forget(PyObject *object, PyObject *Py_UNUSED(none))
{
    PyDict_Clear(((Course *)object)->made);
    Py_RETURN_NONE;
}

static PyMethodDef course_methods[] = {
    {"take", FAST(course_take), "Record a call and what it takes, if its like is known."},
    {"enter", FAST(course_enter), "The same of a module, in the scope that was opened for it."},
    {"give", FAST(course_give), "Record what the call gave."},
    {"put_at", FAST(course_put_at), "Record a gradient at slots whose like had one before."},
    {"forget", course_forget, METH_NOARGS, "Make anew what is kept in place of values."},
    {"follow", course_follow, METH_VARARGS, "Be told of the step whose modules are called."},
    {"watch_by", course_watch_by, METH_VARARGS, "Be told what is known of gradients."},
    {NULL, NULL, 0, NULL}};

#define TYPE(NAME, WORD, DOC, ...)                                                              \
    static PyType_Slot NAME##_slots[] = {{Py_tp_new, NAME##_new},                               \
                                         {Py_tp_dealloc, NAME##_free},                          \
                                         {Py_tp_traverse, NAME##_traverse},                     \
                                         {Py_tp_clear, NAME##_clear},                           \
                                         {Py_tp_members, NAME##_members},                       \
                                         {Py_tp_doc, DOC},                                      \
                                         __VA_ARGS__ {0, NULL}};                                \
    static PyType_Spec NAME##_spec = {"_plan." #WORD, sizeof(WORD), 0,                          \
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, NAME##_slots};

TYPE(look, Look, "How a value of a call looked.", {Py_tp_methods, look_methods}, )
TYPE(known, Known, "What is known of a call whose like ran before.")
TYPE(course, Course, "The calls of one step, as far as they are known.",
     {Py_tp_methods, course_methods}, )

static PyMemberDef module_call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ModuleCall, call), READONLY, NULL},
    MEMBER(ModuleCall, module, T_OBJECT, READONLY), {NULL, 0, 0, 0, NULL}};
TYPE(module_call, ModuleCall, "A module that is about to be called.",
     {Py_tp_call, PyVectorcall_Call}, )

static PyMemberDef backward_members[] = {
    MEMBER(Backward, gradients, T_OBJECT, READONLY), MEMBER(Backward, step, T_OBJECT, READONLY),
    {NULL, 0, 0, 0, NULL}};
TYPE(backward, Backward, "The gradients of one step, and where each is recorded.")

static PyMemberDef parameter_hook_members[] = {
    MEMBER(ParameterHook, name, T_OBJECT, READONLY), {NULL, 0, 0, 0, NULL}};
TYPE(parameter_hook, ParameterHook, "Is called with a parameter that has its gradient.",
     {Py_tp_call, parameter_hook}, )

static PyType_Slot tensor_hook_slots[] = {{Py_tp_dealloc, tensor_hook_free},
                                          {Py_tp_call, tensor_hook},
                                          {Py_tp_doc, "Is called with the gradient of a tensor."},
                                          {0, NULL}};
static PyType_Spec tensor_hook_spec = {"_plan.TensorHook", sizeof(TensorHook), 0,
                                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                       tensor_hook_slots};

static PyMethodDef versions_methods[] = {
    {"same", versions_same, METH_O, "Whether a model is as it was the last time."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot versions_slots[] = {{Py_tp_new, versions_new},
                                       {Py_tp_dealloc, versions_free},
                                       {Py_tp_methods, versions_methods},
                                       {Py_tp_doc, "Parameters and buffers as they were."},
                                       {0, NULL}};
static PyType_Spec versions_spec = {"_plan.Versions", sizeof(Versions), 0, Py_TPFLAGS_DEFAULT,
                                    versions_slots};

static PyType_Slot held_slots[] = {{Py_tp_dealloc, held_free}, {0, NULL}};
static PyType_Spec held_spec = {"_plan.Held", sizeof(Held), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, held_slots};

/* Be told what torch has, in the order of the fields. */
static PyObject *set_up(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject **fields = (PyObject **)&torch;
    Py_ssize_t count = (Py_ssize_t)(sizeof torch / sizeof *fields);
    if (PyTuple_Size(args) != count)
        return PyErr_Format(PyExc_TypeError, "set_up takes %zd arguments", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *before = fields[i];
        fields[i] = Py_NewRef(PyTuple_GetItem(args, i));
        Py_XDECREF(before);
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Be told what torch has."},
    {"hide_by", hide_by, METH_O, "Be told what sets dynamo's callback for frames."},
    {NULL, NULL, 0, NULL}};

static int name_all(void)
{
    static const char *const words[] = {
        "here", "known", "_numbers", "sink", "is_open", "shape", "dtype", "device", "_version",
        "_cdata", "raw_repr", "f_back", "co_filename", "step", "start", "stop", "step", "begin",
        "put", "put_outputs", "watch", "tell", "condense", "_parameters", "_buffers", "_modules",
        "op", "call", "order", "__enter__", "__exit__", "path", "prefix", "_ops", "model", "paths",
        "leave", "hook", "requires_grad", "_is_param", "grad_fn", "_sequence_nr", "output_nr",
        "_backward_hooks", "_register_hook_dict", "grad", "number", "calls", "values", "links",
        "nbytes",
    };
    PyObject **fields = (PyObject **)&names;
    _Static_assert(sizeof words / sizeof *words == sizeof names / sizeof(PyObject *), "one each");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!(fields[i] = PyUnicode_InternFromString(words[i])))
            return -1;
    return 0;
}

static int make(PyObject *made)
{
    struct {
        const char *name;
        PyType_Spec *spec;
        PyObject **type;
    } types[] = {{"Look", &look_spec, &look_type},
                 {"Known", &known_spec, &known_type},
                 {"Course", &course_spec, &course_type},
                 {"Held", &held_spec, &held_type},
                 {"Versions", &versions_spec, &versions_type},
                 {"ModuleCall", &module_call_spec, &module_call_type},
                 {"Backward", &backward_spec, &backward_type},
                 {"TensorHook", &tensor_hook_spec, &tensor_hook_type},
                 {"ParameterHook", &parameter_hook_spec, &parameter_hook_type}};
    if (course_type) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    find_limits();
    module_call_spec.flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = PyType_FromSpec(types[i].spec);
        if (!*types[i].type || PyModule_AddObjectRef(made, types[i].name, *types[i].type) < 0)
            return -1;
    }
    return name_all();
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, make}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_plan", "Calls that came before.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__plan(void) { return PyModuleDef_Init(&module); }
