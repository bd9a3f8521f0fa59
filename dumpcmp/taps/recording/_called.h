/* Objects that Python calls without counting the call against the limit of recursion. */

#ifndef DUMPCMP_CALLED_H
#define DUMPCMP_CALLED_H

#include <string.h>

#ifndef Py_TPFLAGS_HAVE_VECTORCALL /* of the limited API since Python 3.12, and the same before */
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
PyAPI_FUNC(PyObject *) PyVectorcall_Call(PyObject *callable, PyObject *tuple, PyObject *dict);
#endif
#define OFFSET_FLAG ((size_t)1 << (8 * sizeof(size_t) - 1))
#define HEADROOM 400 /* frames that the capture's own work may take, the user's containers included */

typedef PyObject *(*Vectorcall)(PyObject *, PyObject *const *, size_t, PyObject *);

#define LOOKED_AT 48

/* Where the state of a thread has what is left to it of the limit, counted in ints; -1 where that is
   not known. Python can set the limit of all threads at once alone: another one
   would then be deeper than it may be when the limit is lowered again, which ends the process. */
static int left_at = -1;

/* Find out by setting the limit: these two numbers change with it, and no others. */
static void find_limits(void)
{
    int *state = (int *)PyThreadState_Get(), before[LOOKED_AT], limit = Py_GetRecursionLimit();
    int left = -1, whole = -1, count = 0;
    memcpy(before, state, sizeof before);
    Py_SetRecursionLimit(limit + 1);
    for (int i = 0; i < LOOKED_AT; i++)
        if (state[i] == before[i] + 1) {
            count++;
            if (before[i] == limit)
                whole = i;
            else
                left = i;
        }
    Py_SetRecursionLimit(limit);
    if (count == 2 && left >= 0 && whole >= 0)
        left_at = left;
}

/* Raise the limit of recursion of this thread: the capture's own work may begin at any depth. A limit
   that the program sets meanwhile is raised by as much, since Python keeps the difference. */
static void deepen(int by)
{
    if (left_at < 0)
        return;
    int *state = (int *)PyThreadState_Get();
    state[left_at] += by;
}

static PyObject *set_frame_callback; /* dynamo's, once it is there: what looks at each new frame */
static _Thread_local PyObject *hidden_callback; /* what would look, did the capture not work now */

/* Begin work of the capture's own, which nobody traces; gives what `end_work` needs, or NULL where
   it cannot begin. */
static PyObject *begin_work(void)
{
    deepen(HEADROOM);
    if (!set_frame_callback)
        return Py_NewRef(Py_None);
    PyObject *before = PyObject_CallFunctionObjArgs(set_frame_callback, Py_None, NULL);
    if (!before)
        deepen(-HEADROOM);
    else if (before != Py_None)
        hidden_callback = before;
    return before;
}

static void end_work(PyObject *before)
{
    if (set_frame_callback && before != Py_None) {
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        hidden_callback = NULL;
        PyObject *done = PyObject_CallFunctionObjArgs(set_frame_callback, before, NULL);
        if (!done)
            PyErr_WriteUnraisable(set_frame_callback);
        Py_XDECREF(done);
        PyErr_Restore(type, error, trace);
    }
    Py_DECREF(before);
    deepen(-HEADROOM);
}

/* Be told of dynamo's function. */
static PyObject *hide_by(PyObject *self, PyObject *set_callback)
{
    (void)self;
    PyObject *former = set_frame_callback;
    set_frame_callback = Py_NewRef(set_callback);
    Py_XDECREF(former);
    Py_RETURN_NONE;
}

static PyObject *tuple_of(PyObject *const *args, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple && i < count; i++)
        PyTuple_SetItem(tuple, i, Py_NewRef(args[i]));
    return tuple;
}

static PyObject *dict_of(PyObject *words, PyObject *const *values)
{
    PyObject *dict = PyDict_New();
    Py_ssize_t count = words ? PyTuple_Size(words) : 0;
    for (Py_ssize_t i = 0; dict && i < count; i++)
        if (PyDict_SetItem(dict, PyTuple_GetItem(words, i), values[i]) < 0)
            Py_CLEAR(dict);
    return dict;
}

#endif
