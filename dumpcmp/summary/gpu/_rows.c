/* Makes rows of Summaries of CUDA tensors by one call each: what RowMaker.row does of a dense
   tensor, once its kernels are compiled.

   The driver is asked by its own library, which is there wherever there is such a tensor; nothing
   of CUDA is needed to build this. The interpreter's lock is kept while a kernel is launched: it
   takes microseconds, and who lets go of the lock waits for the thread that writes. Only where
   many rows are under way, so that the driver may have to wait for room in its queue, is it let
   go: what runs on the device may need a thread of the program. Rows come to the host by one call
   too, which lets go of the lock once: each time that two threads hand it over takes longer than
   a launch. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <dlfcn.h>
#include <string.h>

#define MOST_ARGUMENTS 24
#define ALIGNED 16
#define MANY_UNDER_WAY 192 /* rows; the driver's queue has room for some thousand launches */

typedef unsigned long long Word;
typedef int (*LaunchKernel)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, unsigned shared, void *stream, void **arguments, void **);

static struct {
    LaunchKernel launch;
    int (*context_of)(void *stream, void **context);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*record)(void *event, void *stream);
    int (*await)(void *stream, void *event, unsigned flags);
    int (*copy)(void *host, Word address, size_t nbytes, void *stream);
    int (*settle)(void *stream);
    char brings; /* all of them are there */
} driver;

typedef struct {
    PyObject_HEAD
    Word address, row_nbytes, host; /* of its first row, on the device and on the host */
    Word stream;                    /* whose kernels make it */
    long num_filled, num_finished, num_arrived, most;
} Slate;

typedef struct {
    Word function;
    unsigned grid[3], num_threads, shared;
    int count; /* of arguments that it takes */
    Word values[MOST_ARGUMENTS];
} Kernel;

typedef struct {
    PyObject_HEAD
    Word sums, totals, partials, sums_nbytes, totals_nbytes, partials_nbytes; /* one's, strides */
    long num_places;
    PyObject *slate; /* that the next row belongs to, or None */
    Kernel finish;
    char finishes; /* by that kernel */
    char is_busy;  /* Python has rows made just now, and its lock kept */
} Workbench;

typedef struct {
    PyObject_HEAD
    long device;
    PyObject *number; /* of the device */
    PyObject *current_device, *current_stream, *find;
    Kernel sum, add;
    char adds, takes_gaps;
    Word stream;
    unsigned long thread;
    PyObject *scratch; /* of that stream and thread, or NULL */
} Rows;

typedef struct {
    PyObject_HEAD
    PyObject *slate;
    long number;
} Filler;

static PyObject *slate_type, *scratch_type, *rows_type, *filler_type;
static long long num_under_way;

/* ---- launching ---- */

static int launch(Kernel *kernel, Word stream)
{
    void *places[MOST_ARGUMENTS];
    if (!driver.launch) {
        PyErr_SetString(PyExc_RuntimeError, "no driver was opened");
        return -1;
    }
    for (int i = 0; i < kernel->count; i++)
        places[i] = &kernel->values[i];
    unsigned *grid = kernel->grid;
    int failed;
    if (num_under_way > MANY_UNDER_WAY) {
        Kernel own = *kernel; /* another thread may come in the meantime */
        for (int i = 0; i < own.count; i++)
            places[i] = &own.values[i];
        Py_BEGIN_ALLOW_THREADS
        failed = driver.launch((void *)own.function, grid[0], grid[1], grid[2], own.num_threads, 1,
                               1, own.shared, (void *)stream, places, NULL);
        Py_END_ALLOW_THREADS
    } else {
        failed = driver.launch((void *)kernel->function, grid[0], grid[1], grid[2],
                               kernel->num_threads, 1, 1, kernel->shared, (void *)stream, places,
                               NULL);
    }
    if (failed)
        PyErr_Format(PyExc_RuntimeError, "the driver did not launch a kernel: error %d", failed);
    return failed ? -1 : 0;
}

/* A kernel of a DriverKernel, with `pointers` behind `num_open` that are set for each launch, and
   `num_last` more before its `numbers`. */
static int prepare(Kernel *kernel, PyObject *compiled, int num_open, PyObject *pointers,
                   int num_last, PyObject *numbers)
{
    Py_buffer widths;
    PyObject *grid = PyTuple_GetItem(compiled, 1);
    unsigned *dims = kernel->grid;
    if (!grid || !PyArg_ParseTuple(grid, "III", &dims[0], &dims[1], &dims[2]))
        return -1;
    kernel->function = PyLong_AsUnsignedLongLong(PyTuple_GetItem(compiled, 0));
    kernel->num_threads = (unsigned)PyLong_AsUnsignedLong(PyTuple_GetItem(compiled, 2));
    kernel->shared = (unsigned)PyLong_AsUnsignedLong(PyTuple_GetItem(compiled, 3));
    if (PyErr_Occurred() || PyObject_GetBuffer(PyTuple_GetItem(compiled, 4), &widths, PyBUF_SIMPLE))
        return -1;
    const unsigned char *width = widths.buf;
    Py_ssize_t num_pointers = PyTuple_Size(pointers), num_numbers = PyTuple_Size(numbers);
    Py_ssize_t ours = num_open + num_pointers + num_last + num_numbers;
    int failed = ours > widths.len || widths.len > MOST_ARGUMENTS;
    kernel->count = 0;
    for (Py_ssize_t i = 0; !failed && i < widths.len; i++) {
        PyObject *given = NULL;
        Py_ssize_t number = i - num_open;
        if (number >= 0 && number < num_pointers)
            given = PyTuple_GetItem(pointers, number);
        number -= num_pointers + num_last;
        if (number >= 0 && number < num_numbers)
            given = PyTuple_GetItem(numbers, number);
        Word value = given ? PyLong_AsUnsignedLongLongMask(given) : 0;
        failed = PyErr_Occurred() != NULL || (i < num_open && width[i] != 8);
        if (width[i])
            kernel->values[kernel->count++] = value;
    }
    PyBuffer_Release(&widths);
    if (failed && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a kernel with other arguments");
    return failed ? -1 : 0;
}

/* ---- rows ---- */

/* Room for one row more: the scratch memory and the slate that it belongs to; borrowed. */
static Workbench *room_of(Rows *self, Word stream, PyObject *number, Slate **slate)
{
    unsigned long thread = PyThread_get_thread_ident();
    if (!self->scratch || self->stream != stream || self->thread != thread) {
        PyObject *found = PyObject_CallFunctionObjArgs(self->find, number, NULL);
        if (!found)
            return NULL;
        if (!PyObject_TypeCheck(found, (PyTypeObject *)scratch_type)) {
            Py_DECREF(found);
            PyErr_SetString(PyExc_TypeError, "no scratch memory");
            return NULL;
        }
        PyObject *before = self->scratch;
        self->scratch = found;
        Py_XDECREF(before);
        self->stream = stream;
        self->thread = thread;
    }
    Workbench *scratch = (Workbench *)self->scratch;
    PyObject *found = scratch->slate;
    if (!found || found == Py_None || ((Slate *)found)->num_filled >= ((Slate *)found)->most) {
        found = PyObject_GetAttrString((PyObject *)scratch, "batch"); /* a new one, kept there */
        Py_XDECREF(found);
        if (!found || found != scratch->slate)
            return NULL;
    }
    if (!PyObject_TypeCheck(found, (PyTypeObject *)slate_type)) {
        PyErr_SetString(PyExc_TypeError, "no slate");
        return NULL;
    }
    *slate = (Slate *)found;
    return scratch;
}

/* Where the sums of row `number` of a slate lie: `values` gets sums and totals; gives the partials. */
static Word place_of(Workbench *scratch, long number, Word *values)
{
    Word place = (Word)(number % scratch->num_places);
    values[0] = scratch->sums + place * scratch->sums_nbytes;
    values[1] = scratch->totals + place * scratch->totals_nbytes;
    return scratch->partials + place * scratch->partials_nbytes;
}

/* Make rows of all sums of a slate that are none yet. The interpreter's lock is kept, so that they
   are made once; where that cannot be, Python does it, with a lock of its own. */
static int finish_rows(Workbench *scratch, Slate *slate)
{
    long first = slate->num_finished, count = slate->num_filled - first;
    if (!scratch->finishes || scratch->is_busy || num_under_way > MANY_UNDER_WAY) {
        PyObject *done = PyObject_CallMethod((PyObject *)scratch, "finish", "O", slate);
        Py_XDECREF(done);
        return done ? 0 : -1;
    }
    if (count <= 0)
        return 0;
    Kernel *kernel = &scratch->finish;
    kernel->values[4] = place_of(scratch, first, kernel->values);
    kernel->values[3] = slate->address + (Word)first * slate->row_nbytes;
    kernel->grid[1] = (unsigned)count;
    if (launch(kernel, slate->stream) < 0)
        return -1;
    slate->num_finished = slate->num_filled;
    return 0;
}

static int make_row(Rows *self, Word address, Word stream, Workbench *scratch, Slate *slate)
{
    Word partials = place_of(scratch, slate->num_filled, &self->sum.values[1]);
    self->sum.values[0] = address;
    if (launch(&self->sum, stream) < 0)
        return -1;
    if (self->adds) {
        self->add.values[0] = address;
        self->add.values[3] = partials;
        if (launch(&self->add, stream) < 0)
            return -1;
    }
    slate->num_filled++;
    num_under_way++;
    if (slate->num_filled % scratch->num_places && slate->num_filled < slate->most)
        return 0;
    return finish_rows(scratch, slate);
}

/* finish_by(kernel, places): have rows made by this DriverKernel, with the table at `places`. */
static PyObject *scratch_finish_by(PyObject *object, PyObject *args)
{
    Workbench *self = (Workbench *)object;
    PyObject *compiled, *places;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &compiled, &PyLong_Type, &places))
        return NULL;
    PyObject *pointers = PyTuple_Pack(1, places), *none = PyTuple_New(0);
    int failed = !pointers || !none || prepare(&self->finish, compiled, 2, pointers, 2, none) < 0;
    Py_XDECREF(pointers);
    Py_XDECREF(none);
    if (failed)
        return NULL;
    self->finishes = 1;
    Py_RETURN_NONE;
}

/* Have the rows of a slate up to `end` copied to the host by the stream `side`, and wait. */
static int copy_rows(Slate *slate, long end, Word side, Word event)
{
    Word from = (Word)slate->num_arrived * slate->row_nbytes;
    size_t nbytes = (size_t)((Word)end * slate->row_nbytes - from);
    void *host = (char *)slate->host + from;
    int failed = driver.record((void *)event, (void *)slate->stream);
    if (!failed)
        failed = driver.await((void *)side, (void *)event, 0);
    if (!failed)
        failed = driver.copy(host, slate->address + from, nbytes, (void *)side);
    return failed ? failed : driver.settle((void *)side);
}

/* bring(scratch, slate, side, event): bring all rows of a slate to where it has room for them on
   the host, by the stream `side`, which waits for the others by `event`. Whether that was done. */
static PyObject *bring(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *scratch, *object;
    Word side, event;
    if (!PyArg_ParseTuple(args, "O!O!KK", scratch_type, &scratch, slate_type, &object, &side,
                          &event))
        return NULL;
    Slate *slate = (Slate *)object;
    void *context;
    if (!driver.brings || !slate->host || driver.context_of((void *)side, &context) ||
        driver.push(context))
        Py_RETURN_FALSE;
    int made = finish_rows((Workbench *)scratch, slate), failed = 0;
    long end = slate->num_finished;
    if (made == 0) {
        Py_BEGIN_ALLOW_THREADS
        failed = copy_rows(slate, end, side, event);
        Py_END_ALLOW_THREADS
    }
    driver.pop(&context);
    if (failed)
        PyErr_Format(PyExc_RuntimeError, "the driver did not bring rows: error %d", failed);
    if (made < 0 || failed)
        return NULL;
    num_under_way += slate->num_arrived - end;
    slate->num_arrived = end;
    Py_RETURN_TRUE;
}

/* The row of what lies at (address, tensor): what fills a room with it later. None where that is
   on another device than the current one, or does not lie as kernels want it. */
static PyObject *rows_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Rows *self = (Rows *)object;
    if (kwargs || PyTuple_Size(args) != 2)
        return PyErr_Format(PyExc_TypeError, "it takes an address and its tensor");
    Word address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(args, 0));
    PyObject *device = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(self->current_device);
    if (!device)
        return NULL;
    int elsewhere = PyLong_AsLong(device) != self->device || address % ALIGNED;
    Py_DECREF(device);
    if (elsewhere)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *number = PyObject_CallFunctionObjArgs(self->current_stream, self->number, NULL);
    if (!number)
        return NULL;
    Word stream = PyLong_AsUnsignedLongLong(number);
    Slate *slate = NULL;
    Workbench *scratch = PyErr_Occurred() ? NULL : room_of(self, stream, number, &slate);
    Py_DECREF(number);
    Filler *filler = NULL;
    if (scratch && (filler = PyObject_New(Filler, (PyTypeObject *)filler_type))) {
        filler->slate = Py_NewRef((PyObject *)slate);
        filler->number = slate->num_filled;
        Py_INCREF((PyObject *)scratch);
        int failed = make_row(self, address, stream, scratch, slate);
        Py_DECREF((PyObject *)scratch);
        if (failed < 0)
            Py_CLEAR(filler);
    }
    return (PyObject *)filler;
}

/* Fill a room with the row; waits for the device where it has not arrived. */
static PyObject *filler_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    Filler *self = (Filler *)object;
    Slate *slate = (Slate *)self->slate;
    Py_buffer room;
    if (kwargs || PyTuple_Size(args) != 1)
        return PyErr_Format(PyExc_TypeError, "it takes the room to fill");
    if (self->number >= slate->num_arrived) {
        PyObject *done = PyObject_CallMethod(self->slate, "fetch", "l", self->number);
        Py_XDECREF(done);
        if (!done)
            return NULL;
    }
    if (self->number >= slate->num_arrived || !slate->host)
        return PyErr_Format(PyExc_RuntimeError, "row %ld did not arrive", self->number);
    if (PyObject_GetBuffer(PyTuple_GetItem(args, 0), &room, PyBUF_WRITABLE))
        return NULL;
    int fits = (Word)room.len == slate->row_nbytes;
    if (fits)
        memcpy(room.buf, (char *)slate->host + (Word)self->number * slate->row_nbytes,
               slate->row_nbytes);
    PyBuffer_Release(&room);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "a row has %llu bytes", slate->row_nbytes);
    Py_RETURN_NONE;
}

/* ---- types ---- */

static PyObject *new_object(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *number, *device, *stream, *find, *sum, *add, *pointers, *numbers, *more;
    if (kwargs || !PyArg_ParseTuple(args, "O!OOOO!OO!O!O", &PyLong_Type, &number, &device, &stream,
                                    &find, &PyTuple_Type, &sum, &add, &PyTuple_Type, &pointers,
                                    &PyTuple_Type, &numbers, &more))
        return kwargs ? PyErr_Format(PyExc_TypeError, "Rows takes no keywords") : NULL;
    Rows *self = (Rows *)new_object(type);
    if (!self)
        return NULL;
    self->device = PyLong_AsLong(number);
    self->number = Py_NewRef(number);
    self->current_device = Py_NewRef(device);
    self->current_stream = Py_NewRef(stream);
    self->find = Py_NewRef(find);
    self->adds = add != Py_None;
    int failed = prepare(&self->sum, sum, 3, pointers, 0, numbers);
    if (!failed && self->adds)
        failed = !PyTuple_Check(more) ||
                 prepare(&self->add, add, 1, PyTuple_GetItem(more, 0), 1, PyTuple_GetItem(more, 1));
    if (failed || PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int rows_traverse(PyObject *object, visitproc visit, void *arg)
{
    Rows *self = (Rows *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->find);
    Py_VISIT(self->scratch);
    return 0;
}

static int rows_clear(PyObject *object)
{
    Rows *self = (Rows *)object;
    Py_CLEAR(self->number);
    Py_CLEAR(self->current_device);
    Py_CLEAR(self->current_stream);
    Py_CLEAR(self->find);
    Py_CLEAR(self->scratch);
    return 0;
}

static void rows_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    rows_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static void plain_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (type == (PyTypeObject *)filler_type)
        Py_CLEAR(((Filler *)object)->slate);
    else /* a slate: nobody waits for what is left on it */
        num_under_way -= ((Slate *)object)->num_filled - ((Slate *)object)->num_arrived;
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static int scratch_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((Workbench *)object)->slate);
    return 0;
}

static int scratch_clear(PyObject *object)
{
    Py_CLEAR(((Workbench *)object)->slate);
    return 0;
}

static void scratch_free(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    scratch_clear(object);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#define MEMBER(type, name, kind) {#name, kind, offsetof(type, name), 0, NULL}

static PyMemberDef slate_members[] = {
    MEMBER(Slate, address, T_ULONGLONG), MEMBER(Slate, row_nbytes, T_ULONGLONG),
    MEMBER(Slate, host, T_ULONGLONG), MEMBER(Slate, stream, T_ULONGLONG),
    MEMBER(Slate, num_filled, T_LONG),
    MEMBER(Slate, num_finished, T_LONG), MEMBER(Slate, num_arrived, T_LONG),
    MEMBER(Slate, most, T_LONG), {NULL, 0, 0, 0, NULL}};
static PyMemberDef scratch_members[] = {
    MEMBER(Workbench, sums, T_ULONGLONG), MEMBER(Workbench, totals, T_ULONGLONG),
    MEMBER(Workbench, partials, T_ULONGLONG), MEMBER(Workbench, sums_nbytes, T_ULONGLONG),
    MEMBER(Workbench, totals_nbytes, T_ULONGLONG), MEMBER(Workbench, partials_nbytes, T_ULONGLONG),
    MEMBER(Workbench, num_places, T_LONG), MEMBER(Workbench, slate, T_OBJECT),
    MEMBER(Workbench, is_busy, T_BOOL),
    {"finishes", T_BOOL, offsetof(Workbench, finishes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyMethodDef scratch_methods[] = {
    {"finish_by", scratch_finish_by, METH_VARARGS, "Have rows made by this kernel and table."},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slate_slots[] = {{Py_tp_members, slate_members},
                                    {Py_tp_dealloc, plain_free},
                                    {Py_tp_doc, "Rows of one length, and how far they are."},
                                    {0, NULL}};
static PyType_Slot scratch_slots[] = {{Py_tp_members, scratch_members},
                                      {Py_tp_methods, scratch_methods},
                                      {Py_tp_dealloc, scratch_free},
                                      {Py_tp_traverse, scratch_traverse},
                                      {Py_tp_clear, scratch_clear},
                                      {Py_tp_doc, "Where sums lie before they are rows."},
                                      {0, NULL}};
static PyMemberDef rows_members[] = {MEMBER(Rows, takes_gaps, T_BOOL), {NULL, 0, 0, 0, NULL}};
static PyType_Slot rows_slots[] = {{Py_tp_new, rows_new},
                                   {Py_tp_members, rows_members},
                                   {Py_tp_call, rows_call},
                                   {Py_tp_dealloc, rows_free},
                                   {Py_tp_traverse, rows_traverse},
                                   {Py_tp_clear, rows_clear},
                                   {Py_tp_doc, "Makes rows of tensors of one length and dtype."},
                                   {0, NULL}};
static PyType_Slot filler_slots[] = {
    {Py_tp_call, filler_call}, {Py_tp_dealloc, plain_free}, {0, NULL}};

static PyType_Spec slate_spec = {"_rows.Slate", sizeof(Slate), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slate_slots};
static PyType_Spec scratch_spec = {
    "_rows.Workbench", sizeof(Workbench), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, scratch_slots};
static PyType_Spec rows_spec = {"_rows.Rows", sizeof(Rows), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, rows_slots};
static PyType_Spec filler_spec = {"_rows.Filler", sizeof(Filler), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                  filler_slots};

/* Ask the driver of this name from now on; whether it can launch. */
static PyObject *open_driver(PyObject *self, PyObject *args)
{
    (void)self;
    const char *name;
    if (!PyArg_ParseTuple(args, "s", &name))
        return NULL;
    static const char *const functions[] = {
        "cuLaunchKernel", "cuStreamGetCtx", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
        "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"};
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *found[8];
    driver.brings = 1;
    for (int i = 0; i < 8; i++) {
        found[i] = library ? dlsym(library, functions[i]) : NULL;
        driver.brings &= found[i] != NULL;
    }
    memcpy(&driver.launch, &found[0], sizeof *found);
    memcpy(&driver.context_of, &found[1], sizeof *found);
    memcpy(&driver.push, &found[2], sizeof *found);
    memcpy(&driver.pop, &found[3], sizeof *found);
    memcpy(&driver.record, &found[4], sizeof *found);
    memcpy(&driver.await, &found[5], sizeof *found);
    memcpy(&driver.copy, &found[6], sizeof *found);
    memcpy(&driver.settle, &found[7], sizeof *found);
    return PyBool_FromLong(driver.launch != NULL);
}

/* So many rows more are under way, or fewer: those that have arrived; gives how many there are. */
static PyObject *under_way(PyObject *self, PyObject *change)
{
    (void)self;
    long long more = PyLong_AsLongLong(change);
    if (more == -1 && PyErr_Occurred())
        return NULL;
    num_under_way += more;
    return PyLong_FromLongLong(num_under_way);
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_VARARGS, "Launch by the driver of this name, if it can."},
    {"bring", bring, METH_VARARGS, "Bring the rows of a slate to the host, if the driver can."},
    {"under_way", under_way, METH_O, "Count so many rows more that are under way."},
    {NULL, NULL, 0, NULL}};

static int make(PyObject *made)
{
    struct {
        const char *name;
        PyType_Spec *spec;
        PyObject **type;
    } types[] = {{"Slate", &slate_spec, &slate_type},
                 {"Workbench", &scratch_spec, &scratch_type},
                 {"Rows", &rows_spec, &rows_type},
                 {"Filler", &filler_spec, &filler_type}};
    if (rows_type) {
        PyErr_SetString(PyExc_ImportError, "one interpreter alone can have it");
        return -1;
    }
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = PyType_FromSpec(types[i].spec);
        if (!*types[i].type || PyModule_AddObjectRef(made, types[i].name, *types[i].type) < 0)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, make}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rows", "Rows of Summaries of CUDA tensors.", 0, methods, slots, NULL,
    NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
