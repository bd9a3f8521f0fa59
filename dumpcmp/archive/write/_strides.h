/* The elements of strided tensors in host memory, copied dense and in row-major order. */

#ifndef DUMPCMP_STRIDES_H
#define DUMPCMP_STRIDES_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

#define MOST_DIMS 64
#define LONG 65536 /* bytes that are worth letting other threads run meanwhile */

typedef struct {
    Py_ssize_t count, step; /* elements, and bytes from one to the next */
} Dim;

/* `count` elements of `size` bytes, `step` bytes apart. */
static void copy_row(char *to, const char *from, Py_ssize_t count, Py_ssize_t step, int size)
{
    if (step == size) {
        memcpy(to, from, (size_t)(count * size));
        return;
    }
    switch (size) {
#define COPY(SIZE)                                                                              \
    case SIZE:                                                                                  \
        for (Py_ssize_t i = 0; i < count; i++)                                                  \
            memcpy(to + i * SIZE, from + i * step, SIZE);                                       \
        return;
        COPY(1)
        COPY(2)
        COPY(4)
        COPY(8)
        COPY(16)
#undef COPY
    }
}

/* How far a tensor has been copied. */
typedef struct {
    const char *from;               /* where the row begins that comes next */
    Py_ssize_t places[MOST_DIMS];   /* which one that is */
    Py_ssize_t at;                  /* elements of it that are copied */
    int ended;
} Walk;

static Walk walk_from(const char *from)
{
    Walk walk = {from, {0}, 0, 0};
    return walk;
}

/* The next elements, as many as `most` bytes have room for; gives the bytes that were copied. */
static Py_ssize_t copy_next(Walk *walk, const Dim *dims, int num_dims, int size, char *to,
                            Py_ssize_t most)
{
    const Dim *row = &dims[num_dims - 1];
    Py_ssize_t done = 0;
    while (!walk->ended) {
        Py_ssize_t left = row->count - walk->at, count = (most - done) / size;
        count = left < count ? left : count;
        copy_row(to + done, walk->from + walk->at * row->step, count, row->step, size);
        done += count * size;
        walk->at += count;
        if (count < left)
            return done;
        walk->at = 0;
        int dim = num_dims - 2;
        for (; dim >= 0; dim--) {
            walk->from += dims[dim].step;
            if (++walk->places[dim] < dims[dim].count)
                break;
            walk->from -= dims[dim].count * dims[dim].step;
            walk->places[dim] = 0;
        }
        walk->ended = dim < 0;
    }
    return done;
}

static void copy_all(char *to, const char *from, const Dim *dims, int num_dims, int size)
{
    Walk walk = walk_from(from);
    copy_next(&walk, dims, num_dims, size, to, PY_SSIZE_T_MAX);
}

/* The dims of a tensor with those together that lie as one; -1 with an exception set. */
static int read_dims(PyObject *shape, PyObject *stride, int size, Dim *dims)
{
    Py_ssize_t given = PyTuple_Size(shape);
    if (given < 0 || PyTuple_Size(stride) != given || given > MOST_DIMS) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "gather: shape and stride do not fit together");
        return -1;
    }
    int num_dims = 0;
    for (Py_ssize_t i = 0; i < given; i++) {
        Dim dim = {PyLong_AsSsize_t(PyTuple_GetItem(shape, i)),
                   PyLong_AsSsize_t(PyTuple_GetItem(stride, i))};
        if (PyErr_Occurred())
            return -1;
        if (dim.count < 0 || dim.step < 0) {
            PyErr_SetString(PyExc_ValueError, "gather: sizes are not negative");
            return -1;
        }
        dim.step *= size;
        if (dim.count == 1)
            continue;
        Dim *last = num_dims ? &dims[num_dims - 1] : NULL;
        if (last && last->step == dim.count * dim.step) {
            last->count *= dim.count;
            last->step = dim.step;
        } else {
            dims[num_dims++] = dim;
        }
    }
    if (!num_dims)
        dims[num_dims++] = (Dim){1, size};
    return num_dims;
}

#endif
