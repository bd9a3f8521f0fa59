/* Copies the elements of a strided tensor in host memory, dense and in row-major order.

   What sources.py does through torch, which takes four of its calls for a tensor that is not
   contiguous, and lets other threads of Python run in each of them. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "../../archive/write/_strides.h"

static PyObject *gather(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer room;
    unsigned long long address;
    int size;
    PyObject *shape, *stride;
    if (!PyArg_ParseTuple(args, "w*KiO!O!", &room, &address, &size, &PyTuple_Type, &shape,
                          &PyTuple_Type, &stride))
        return NULL;
    Dim dims[MOST_DIMS];
    int num_dims = read_dims(shape, stride, size, dims);
    Py_ssize_t nbytes = size;
    for (int i = 0; i < num_dims; i++)
        nbytes *= dims[i].count;
    int known = size == 1 || size == 2 || size == 4 || size == 8 || size == 16;
    if (num_dims >= 0 && (!known || nbytes != room.len)) {
        PyErr_SetString(PyExc_ValueError, "gather: the room does not fit the elements");
        num_dims = -1;
    }
    if (num_dims > 0 && nbytes) {
        const char *from = (const char *)(uintptr_t)address;
        if (nbytes < LONG) {
            copy_all(room.buf, from, dims, num_dims, size);
        } else {
            Py_BEGIN_ALLOW_THREADS
            copy_all(room.buf, from, dims, num_dims, size);
            Py_END_ALLOW_THREADS
        }
    }
    PyBuffer_Release(&room);
    return num_dims < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"gather", gather, METH_VARARGS,
     "Copy the elements at an address, by itemsize, shape and stride, densely into a buffer."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_gather", "Elements of strided tensors, dense.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__gather(void) { return PyModuleDef_Init(&module); }
