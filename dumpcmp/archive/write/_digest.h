/* Digests of tensors in host memory, by xxhash, while the interpreter's lock is held throughout. */

#ifndef DUMPCMP_DIGEST_H
#define DUMPCMP_DIGEST_H

#include "_strides.h"

#define PIECE 32768 /* bytes that are digested while they are hot; for LONG ones xxhash lets go */
#define MOST_AT_ONCE (4 << 20) /* bytes for which other threads of Python may wait, a millisecond */
#define ROW_NBYTES 64

/* Whether whole rows are copied at once, where torch would be no faster by blocks. */
static int has_rows(const Dim *dims, int num_dims, int size)
{
    const Dim *row = &dims[num_dims - 1];
    return row->step == size && row->count * size >= ROW_NBYTES;
}

/* The digest of less than LONG bytes: what `digest` says of them. */
static PyObject *digest_at_once(PyObject *digest, char *from, Py_ssize_t nbytes)
{
    PyObject *view = PyMemoryView_FromMemory(from, nbytes, PyBUF_READ);
    PyObject *found = view ? PyObject_CallFunctionObjArgs(digest, view, NULL) : NULL;
    Py_XDECREF(view);
    return found;
}

/* Feed `nbytes` to `update`, the method of a hasher, in pieces for which it lets nobody else run. */
static int feed(PyObject *update, char *from, Py_ssize_t nbytes)
{
    for (Py_ssize_t at = 0; at < nbytes; at += PIECE) {
        PyObject *done = digest_at_once(update, from + at, nbytes - at < PIECE ? nbytes - at : PIECE);
        if (!done)
            return -1;
        Py_DECREF(done);
    }
    return 0;
}

/* The digest of the elements by a new hasher, each piece right after it was copied to `to`; where
   that is NULL they are copied nowhere. */
static PyObject *copy_digested(PyObject *hasher, char *to, const char *from, const Dim *dims,
                               int num_dims, int size)
{
    static char room[PIECE];
    PyObject *hashing = PyObject_CallNoArgs(hasher), *digest = NULL;
    PyObject *update = hashing ? PyObject_GetAttrString(hashing, "update") : NULL;
    Walk walk = walk_from(from);
    int done = update ? 0 : -1;
    while (!done && !walk.ended) {
        char *place = to ? to : room;
        Py_ssize_t nbytes = copy_next(&walk, dims, num_dims, size, place, PIECE);
        done = feed(update, place, nbytes);
        to = to ? to + nbytes : NULL;
    }
    if (!done)
        digest = PyObject_CallMethod(hashing, "hexdigest", NULL);
    Py_XDECREF(update);
    Py_XDECREF(hashing);
    return digest;
}

#endif
