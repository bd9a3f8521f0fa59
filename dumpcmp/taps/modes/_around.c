/* Runs the program's calls with the capture's work before and after them, and no frame of Python
   around them: what around.py does, so that the program has the depth of recursion that it has
   without a capture.

   Python counts frames, and calls of built-in functions, against one limit. The objects here are
   called in a way that it does not count. While the capture itself works the limit is raised, since
   that may happen at any depth, and dynamo does not look on. While the program's function runs a
   second time, from inside of the call that torch gave to a mode, the limit is raised by what that
   call took. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "../recording/_called.h"

/* A call of the program: `before` says what to run, and what comes after it. */
typedef struct {
    PyObject_HEAD
    Vectorcall call;
    PyObject *before, *bound;
} Around;

/* The method of a mode that torch gives a call to. */
typedef struct {
    PyObject_HEAD
    Vectorcall call;
    PyObject *mode, *function; /* __self__, and __func__ for whoever wants to read it */
    int extra;                 /* what the call that torch gave takes of the limit */
    char follows;              /* whether the mode has a step, which may know the call */
} ModeCall;

/* Stands in for torch.overrides.handle_torch_function. */
typedef struct {
    PyObject_HEAD
    Vectorcall call;
    PyObject *original;
} HandOver;

/* Calls what it is given with a limit that is raised. */
typedef struct {
    PyObject_HEAD
    Vectorcall call;
    int by;
} Deeper;

static PyObject *around_type, *mode_call_type, *hand_over_type, *deeper_type;

/* What torch and the package have, set once by `set_up`. */
static struct {
    PyObject *tracing_state, *dispatch_mode, *proxy_mode, *fx, *compiler, *is_traced, *has_modes,
        *num_modes, *mode_at, *pop, *push;
} torch;

static struct {
    PyObject *step, *routine, *quick, *take, *give, *begin, *torch_function, *fx_flag,
        *compiling_flag;
} names;

/* Call what is the capture's own, at whatever depth; up to three arguments. */
static PyObject *work(PyObject *callable, PyObject *one, PyObject *two, PyObject *three)
{
    PyObject *before = begin_work();
    if (!before)
        return NULL;
    PyObject *done = PyObject_CallFunctionObjArgs(callable, one, two, three, NULL);
    end_work(before);
    return done;
}

/* The same of a method. */
static PyObject *work_of(PyObject *object, PyObject *name, PyObject *one, PyObject *two,
                         PyObject *three)
{
    PyObject *method = PyObject_GetAttr(object, name);
    PyObject *done = method ? work(method, one, two, three) : NULL;
    Py_XDECREF(method);
    return done;
}

static PyObject *run(PyObject *callable, PyObject *args, PyObject *kwargs, int extra)
{
    if (extra)
        deepen(extra);
    PyObject *result = PyObject_Call(callable, args, kwargs);
    if (extra)
        deepen(-extra);
    return result;
}

/* Tell `after` that the program has raised; what that raises itself takes its place. */
static void after_error(PyObject *after)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace && error)
        PyException_SetTraceback(error, trace);
    PyObject *done = work(after, Py_None, error ? error : Py_None, NULL);
    if (done) {
        Py_DECREF(done);
        PyErr_Restore(type, error, trace);
        return;
    }
    PyObject *new_type, *new_error, *new_trace;
    PyErr_Fetch(&new_type, &new_error, &new_trace);
    PyErr_NormalizeException(&new_type, &new_error, &new_trace);
    if (new_error && error && new_error != error) {
        PyException_SetContext(new_error, error); /* takes the reference */
        error = NULL;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    PyErr_Restore(new_type, new_error, new_trace);
}

/* Run what a plan says, (callable, args, kwargs, after), which is taken. */
static PyObject *carried_out(PyObject *plan, int extra)
{
    if (!PyTuple_Check(plan) || PyTuple_Size(plan) != 4 || !PyTuple_Check(PyTuple_GetItem(plan, 1)) ||
        !PyDict_Check(PyTuple_GetItem(plan, 2))) {
        Py_DECREF(plan);
        return PyErr_Format(PyExc_TypeError, "a plan is (callable, args, kwargs, after)");
    }
    PyObject *after = PyTuple_GetItem(plan, 3);
    PyObject *result =
        run(PyTuple_GetItem(plan, 0), PyTuple_GetItem(plan, 1), PyTuple_GetItem(plan, 2), extra);
    if (after != Py_None && result) {
        PyObject *done = work(after, result, Py_None, NULL);
        if (!done) {
            Py_CLEAR(result);
        } else if (PyTuple_Check(done) && PyTuple_Size(done) == 1) { /* what stands in for it */
            Py_DECREF(result);
            result = Py_NewRef(PyTuple_GetItem(done, 0));
        }
        Py_XDECREF(done);
    } else if (after != Py_None) {
        after_error(after);
    }
    Py_DECREF(plan);
    return result;
}

/* ---- calls of modules ---- */

static PyObject *around_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *words)
{
    Around *self = (Around *)object;
    Py_ssize_t count = (Py_ssize_t)(flags & ~OFFSET_FLAG);
    PyObject *given = tuple_of(args, count), *named = given ? dict_of(words, args + count) : NULL;
    PyObject *before = Py_NewRef(self->before), *bound = Py_NewRef(self->bound);
    PyObject *plan = named ? work(before, bound, given, named) : NULL;
    Py_XDECREF(given);
    Py_XDECREF(named);
    Py_DECREF(before);
    Py_DECREF(bound);
    return plan ? carried_out(plan, 0) : NULL;
}

static PyObject *around_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *before, *bound;
    if (kwargs || !PyArg_ParseTuple(args, "OO", &before, &bound))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Around takes no keywords") : NULL;
    Around *self = (Around *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->call = around_call;
        self->before = Py_NewRef(before);
        self->bound = Py_NewRef(bound);
    }
    return (PyObject *)self;
}

/* ---- calls that torch gives to a mode ---- */

/* Whether something traces what runs now: 1, 0, or -1 with an exception. */
static int is_traced(void)
{
    PyObject *state = PyObject_CallNoArgs(torch.tracing_state);
    Py_XDECREF(state);
    if (state != Py_None)
        return state ? 1 : -1;
    PyObject *mode = PyObject_CallFunctionObjArgs(torch.dispatch_mode, torch.proxy_mode, NULL);
    Py_XDECREF(mode);
    if (mode != Py_None)
        return mode ? 1 : -1;
    PyObject *flag = PyObject_GetAttr(torch.fx, names.fx_flag);
    Py_XDECREF(flag);
    if (flag != Py_False)
        return flag ? 1 : -1;
    PyObject *compiling = PyObject_GetAttr(torch.compiler, names.compiling_flag);
    Py_XDECREF(compiling);
    if (!compiling || compiling == Py_False)
        return compiling ? 0 : -1;
    PyObject *here = work(torch.is_traced, NULL, NULL, NULL);
    int found = here ? PyObject_IsTrue(here) : -1;
    Py_XDECREF(here);
    return found;
}

/* What records calls that are known in the step of the mode, a new reference; NULL without an
   exception where nothing does, and then `is_idle` says whether there is a step at all. */
static PyObject *course_of(ModeCall *self, int *is_idle)
{
    *is_idle = 0;
    if (!self->follows)
        return NULL;
    PyObject *step = PyObject_GetAttr(self->mode, names.step);
    *is_idle = step == Py_None;
    PyObject *routine = step && !*is_idle ? PyObject_GetAttr(step, names.routine) : NULL;
    PyObject *quick = routine && routine != Py_None ? PyObject_GetAttr(routine, names.quick) : NULL;
    Py_XDECREF(step);
    Py_XDECREF(routine);
    if (quick == Py_None)
        Py_CLEAR(quick);
    return quick;
}

/* Run a call that is known, if it is one: its result, or NULL; `ticket` is None if it is not. */
static PyObject *run_known(PyObject *course, PyObject *func, PyObject *args, PyObject *kwargs,
                           int extra, PyObject **ticket)
{
    PyObject *result = NULL;
    *ticket = work_of(course, names.take, func, args, kwargs);
    if (*ticket && *ticket != Py_None)
        result = run(func, args, kwargs, extra);
    if (result) {
        PyObject *done = work_of(course, names.give, *ticket, args, result);
        if (!done)
            Py_CLEAR(result);
        Py_XDECREF(done);
    }
    return result;
}

static PyObject *given_call(ModeCall *self, PyObject *func, PyObject *args, PyObject *kwargs)
{
    deepen(HEADROOM); /* functions of torch count, too */
    int is_idle = 0, traced = is_traced();
    PyObject *course = traced ? NULL : course_of(self, &is_idle), *ticket = NULL;
    deepen(-HEADROOM);
    if (traced)
        return traced < 0 ? NULL : run(func, args, kwargs, self->extra);
    if (PyErr_Occurred())
        return NULL;
    if (is_idle)
        return run(func, args, kwargs, self->extra);
    if (course) {
        PyObject *result = run_known(course, func, args, kwargs, self->extra, &ticket);
        Py_DECREF(course);
        Py_XDECREF(ticket);
        if (ticket != Py_None)
            return result;
    }
    PyObject *plan = work_of(self->mode, names.begin, func, args, kwargs);
    if (plan != Py_None)
        return plan ? carried_out(plan, self->extra) : NULL;
    Py_DECREF(plan);
    return run(func, args, kwargs, self->extra);
}

/* (func, types, args=(), kwargs=None), as torch calls it. */
static PyObject *mode_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *words)
{
    static const char *const known[] = {"func", "types", "args", "kwargs"};
    ModeCall *self = (ModeCall *)object;
    Py_ssize_t count = (Py_ssize_t)(flags & ~OFFSET_FLAG), named = words ? PyTuple_Size(words) : 0;
    PyObject *found[4] = {NULL, NULL, NULL, NULL};
    for (Py_ssize_t i = 0; i < count && i < 4; i++)
        found[i] = args[i];
    for (Py_ssize_t i = 0; i < named; i++)
        for (int at = 0; at < 4; at++)
            if (!PyUnicode_CompareWithASCIIString(PyTuple_GetItem(words, i), known[at]))
                found[at] = args[count + i];
    if (!found[0] || count > 4)
        return PyErr_Format(PyExc_TypeError, "it takes func, types, args and kwargs");
    PyObject *given = found[2] ? PySequence_Tuple(found[2]) : PyTuple_New(0);
    PyObject *kwargs = !found[3] || found[3] == Py_None ? PyDict_New() : Py_NewRef(found[3]);
    PyObject *result = NULL;
    if (given && kwargs && PyDict_Check(kwargs)) {
        Py_INCREF(object);
        result = given_call(self, found[0], given, kwargs);
        Py_DECREF(object);
    } else if (given && kwargs) {
        PyErr_SetString(PyExc_TypeError, "kwargs must be a dict");
    }
    Py_XDECREF(given);
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *mode_call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *mode, *function;
    int extra, follows;
    if (kwargs || !PyArg_ParseTuple(args, "OOip", &mode, &function, &extra, &follows))
        return kwargs ? PyErr_Format(PyExc_TypeError, "ModeCall takes no keywords") : NULL;
    ModeCall *self = (ModeCall *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->call = mode_call;
        self->mode = Py_NewRef(mode);
        self->function = Py_NewRef(function);
        self->extra = extra;
        self->follows = (char)follows;
    }
    return (PyObject *)self;
}

/* ---- functions of Python that give their calls to a mode ---- */

/* What the mode on top of the stack has for torch, if it is one of ours, a new reference. */
static PyObject *mode_on_top(void)
{
    PyObject *enabled = PyObject_CallNoArgs(torch.has_modes);
    Py_XDECREF(enabled);
    PyObject *count = enabled == Py_True ? PyObject_CallNoArgs(torch.num_modes) : NULL;
    long number = count ? PyLong_AsLong(count) : 0;
    Py_XDECREF(count);
    PyObject *top = number > 0 ? PyLong_FromLong(number - 1) : NULL;
    PyObject *mode = top ? PyObject_CallFunctionObjArgs(torch.mode_at, top, NULL) : NULL;
    PyObject *call = mode ? PyObject_GetAttr(mode, names.torch_function) : NULL;
    Py_XDECREF(top);
    Py_XDECREF(mode);
    if (call && (PyObject *)Py_TYPE(call) != mode_call_type)
        Py_CLEAR(call);
    return call;
}

/* Give a call to the mode on top, which is taken off the stack meanwhile. */
static PyObject *give_to(PyObject *call, PyObject *func, PyObject *args, PyObject *kwargs)
{
    deepen(HEADROOM);
    PyObject *mode = PyObject_CallNoArgs(torch.pop);
    deepen(-HEADROOM);
    PyObject *result = mode ? given_call((ModeCall *)call, func, args, kwargs) : NULL;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *back = mode ? work(torch.push, mode, NULL, NULL) : NULL;
    if (mode && !back)
        PyErr_WriteUnraisable(mode);
    Py_XDECREF(back);
    Py_XDECREF(mode);
    PyErr_Restore(type, error, trace);
    return result;
}

/* (public_api, relevant_args, *args, **kwargs) */
static PyObject *hand_over(PyObject *object, PyObject *const *args, size_t flags, PyObject *words)
{
    HandOver *self = (HandOver *)object;
    Py_ssize_t count = (Py_ssize_t)(flags & ~OFFSET_FLAG);
    PyObject *kwargs = dict_of(words, args + count), *result = NULL;
    deepen(HEADROOM);
    PyObject *call = kwargs && count >= 2 ? mode_on_top() : NULL;
    deepen(-HEADROOM);
    int is_given = 0;
    if (call) {
        PyObject *given = tuple_of(args + 2, count - 2);
        result = given ? give_to(call, args[0], given, kwargs) : NULL;
        is_given = result != Py_NotImplemented;
        Py_XDECREF(given);
        Py_DECREF(call);
        if (!is_given)
            Py_CLEAR(result);
    }
    if (kwargs && !is_given && !PyErr_Occurred()) {
        PyObject *all = tuple_of(args, count);
        result = all ? PyObject_Call(self->original, all, kwargs) : NULL;
        Py_XDECREF(all);
    }
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *hand_over_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *original;
    if (kwargs || !PyArg_ParseTuple(args, "O", &original))
        return kwargs ? PyErr_Format(PyExc_TypeError, "HandOver takes no keywords") : NULL;
    HandOver *self = (HandOver *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->call = hand_over;
        self->original = Py_NewRef(original);
    }
    return (PyObject *)self;
}

/* ---- functions of the program in frames that are not ---- */

static PyObject *deeper_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *words)
{
    Py_ssize_t count = (Py_ssize_t)(flags & ~OFFSET_FLAG);
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "it takes what to call");
    PyObject *given = tuple_of(args + 1, count - 1);
    PyObject *kwargs = given ? dict_of(words, args + count) : NULL;
    PyObject *result = kwargs ? run(args[0], given, kwargs, ((Deeper *)object)->by) : NULL;
    Py_XDECREF(given);
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *deeper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int by;
    if (kwargs || !PyArg_ParseTuple(args, "i", &by))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Deeper takes no keywords") : NULL;
    Deeper *self = (Deeper *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        self->call = deeper_call;
        self->by = by;
    }
    return (PyObject *)self;
}

static int deeper_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int deeper_clear(PyObject *object)
{
    (void)object;
    return 0;
}

/* ---- types ---- */

static int around_traverse(PyObject *object, visitproc visit, void *arg)
{
    Around *self = (Around *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->before);
    Py_VISIT(self->bound);
    return 0;
}

static int around_clear(PyObject *object)
{
    Py_CLEAR(((Around *)object)->before);
    Py_CLEAR(((Around *)object)->bound);
    return 0;
}

static int mode_call_traverse(PyObject *object, visitproc visit, void *arg)
{
    ModeCall *self = (ModeCall *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->mode);
    Py_VISIT(self->function);
    return 0;
}

static int mode_call_clear(PyObject *object)
{
    Py_CLEAR(((ModeCall *)object)->mode);
    Py_CLEAR(((ModeCall *)object)->function);
    return 0;
}

static int hand_over_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((HandOver *)object)->original);
    return 0;
}

static int hand_over_clear(PyObject *object)
{
    Py_CLEAR(((HandOver *)object)->original);
    return 0;
}

static void end(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    ((inquiry)PyType_GetSlot(type, Py_tp_clear))(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#define MEMBER(TYPE, NAME, FIELD) {NAME, T_OBJECT_EX, offsetof(TYPE, FIELD), READONLY, NULL}
#define CALLED(TYPE) {"__vectorcalloffset__", T_PYSSIZET, offsetof(TYPE, call), READONLY, NULL}

static PyMemberDef around_members[] = {CALLED(Around), MEMBER(Around, "bound", bound),
                                       {NULL, 0, 0, 0, NULL}};
static PyMemberDef mode_call_members[] = {CALLED(ModeCall), MEMBER(ModeCall, "__self__", mode),
                                          MEMBER(ModeCall, "__func__", function),
                                          {NULL, 0, 0, 0, NULL}};
static PyMemberDef hand_over_members[] = {CALLED(HandOver),
                                          MEMBER(HandOver, "__wrapped__", original),
                                          {NULL, 0, 0, 0, NULL}};

static PyMemberDef deeper_members[] = {CALLED(Deeper), {NULL, 0, 0, 0, NULL}};

#define TYPE(NAME, WORD, DOC)                                                                    \
    static PyType_Slot NAME##_slots[] = {{Py_tp_new, NAME##_new},                                \
                                         {Py_tp_call, PyVectorcall_Call},                        \
                                         {Py_tp_dealloc, end},                                   \
                                         {Py_tp_traverse, NAME##_traverse},                      \
                                         {Py_tp_clear, NAME##_clear},                            \
                                         {Py_tp_members, NAME##_members},                        \
                                         {Py_tp_doc, DOC},                                       \
                                         {0, NULL}};                                             \
    static PyType_Spec NAME##_spec = {                                                           \
        "_around." #WORD, sizeof(WORD), 0,                                                       \
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, NAME##_slots};

TYPE(around, Around, "A call of the program, with the capture's work before and after it.")
TYPE(mode_call, ModeCall, "The method of a mode that torch gives calls to.")
TYPE(hand_over, HandOver, "Gives calls of torch's functions of Python to a mode.")
TYPE(deeper, Deeper, "Calls what it is given with a limit of recursion that is raised.")

/* Be told what torch and the package have, in the order of the fields. */
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

/* Whether the limit of recursion can be raised. */
static PyObject *can_deepen(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyBool_FromLong(left_at >= 0);
}

/* Dynamo's callback for frames, which is not there while the capture works; None: there is none. */
static PyObject *hidden(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return Py_NewRef(hidden_callback ? hidden_callback : Py_None);
}

static PyMethodDef methods[] = {
    {"hidden", hidden, METH_NOARGS, "Dynamo's callback, while the capture works without it."},
    {"can_deepen", can_deepen, METH_NOARGS, "Whether the limit of recursion can be raised."},
    {"set_up", set_up, METH_VARARGS, "Be told what torch and the package have."},
    {"hide_by", hide_by, METH_O, "Be told what sets dynamo's callback for frames."},
    {NULL, NULL, 0, NULL}};

static int make(PyObject *made)
{
    static const char *const words[] = {
        "step", "routine", "quick", "take", "give", "begin", "__torch_function__",
        "_is_fx_tracing_flag", "_is_compiling_flag",
    };
    struct {
        const char *name;
        PyType_Spec *spec;
        PyObject **type;
    } types[] = {{"Around", &around_spec, &around_type},
                 {"ModeCall", &mode_call_spec, &mode_call_type},
                 {"HandOver", &hand_over_spec, &hand_over_type},
                 {"Deeper", &deeper_spec, &deeper_type}};
    PyObject **fields = (PyObject **)&names;
    _Static_assert(sizeof words / sizeof *words == sizeof names / sizeof(PyObject *), "one each");
    if (around_type) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    find_limits();
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!(fields[i] = PyUnicode_InternFromString(words[i])))
            return -1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = PyType_FromSpec(types[i].spec);
        if (!*types[i].type || PyModule_AddObjectRef(made, types[i].name, *types[i].type) < 0)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, make}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_around", "Calls without frames of Python around them.", 0, methods,
    slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__around(void) { return PyModuleDef_Init(&module); }
