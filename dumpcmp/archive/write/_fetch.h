/* Attributes of objects of classes with slots, fetched one by one. */

#ifndef DUMPCMP_FETCH_H
#define DUMPCMP_FETCH_H

#include <Python.h>

#include <string.h>

#define MOST_FIELDS 16

/* Attributes of a class with slots. Each is had from where it lies in the objects, or by its own
   descriptor, which takes half as long as to look for that first. */
typedef struct {
    PyTypeObject *type;
    descrgetfunc get;
    Py_ssize_t count;
    PyObject *names[MOST_FIELDS], *members[MOST_FIELDS];
    Py_ssize_t places[MOST_FIELDS]; /* bytes from where an object begins; 0: not known */
} Fetch;

static void clear_all(PyObject **objects, size_t count)
{
    for (size_t i = 0; i < count; i++)
        Py_CLEAR(objects[i]);
}

#define CLEAR_EACH(fields) clear_all((PyObject **)&(fields), sizeof(fields) / (sizeof(PyObject *)))

static void clear_fetch(Fetch *fetch)
{
    CLEAR_EACH(fetch->names);
    CLEAR_EACH(fetch->members);
    Py_CLEAR(fetch->type);
    fetch->get = NULL;
    fetch->count = 0;
    memset(fetch->places, 0, sizeof fetch->places);
}

/* Be ready to fetch the attributes `names` of a class from its objects, behind those there are. */
static int extend_fetch(Fetch *fetch, PyObject *type, PyObject *names)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(names); i++, fetch->count++) {
        PyObject *name = PyTuple_GetItem(names, i);
        PyObject *member = PyObject_GetAttr(type, name);
        if (!member || fetch->count >= MOST_FIELDS) {
            Py_XDECREF(member);
            if (member)
                PyErr_SetString(PyExc_ValueError, "fetch: too many names");
            return -1;
        }
        fetch->names[fetch->count] = Py_NewRef(name);
        fetch->members[fetch->count] = member;
    }
    return 0;
}

/* Where in `object` of so many bytes a descriptor puts what it is given; 0 where that is not seen. */
static Py_ssize_t place_of(PyObject *object, Py_ssize_t nbytes, PyObject *member, descrsetfunc set)
{
    PyObject *mark = PyList_New(0);
    Py_ssize_t found = 0, step = (Py_ssize_t)sizeof mark;
    int count = 0;
    if (mark && set(member, object, mark) == 0) {
        for (Py_ssize_t at = (Py_ssize_t)sizeof(PyObject); at <= nbytes - step; at += step) {
            PyObject *lying;
            memcpy(&lying, (char *)object + at, sizeof lying);
            if (lying == mark) {
                found = at;
                count++;
            }
        }
        set(member, object, NULL);
    }
    Py_XDECREF(mark);
    PyErr_Clear();
    return count == 1 ? found : 0;
}

/* See where the slots lie, in an object that is empty but for one of them at a time. */
static int find_places(Fetch *fetch, PyObject *type, PyTypeObject *kind)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    descrsetfunc set = (descrsetfunc)PyType_GetSlot(kind, Py_tp_descr_set);
    PyObject *size = PyObject_GetAttrString(type, "__basicsize__");
    Py_ssize_t nbytes = size ? PyLong_AsSsize_t(size) : -1;
    Py_XDECREF(size);
    PyObject *empty = nbytes > 0 ? allocate((PyTypeObject *)type, 0) : NULL;
    for (Py_ssize_t i = 0; empty && set && i < fetch->count; i++)
        fetch->places[i] = place_of(empty, nbytes, fetch->members[i], set);
    Py_XDECREF(empty);
    return empty ? 0 : -1;
}

/* Whether all of them are slots; they are had in the usual way where they are not. */
static int end_fetch(Fetch *fetch, PyObject *type)
{
    PyTypeObject *kind = Py_TYPE(fetch->members[0]);
    PyObject *name = PyObject_GetAttrString((PyObject *)kind, "__name__");
    int are_slots = name && !PyUnicode_CompareWithASCIIString(name, "member_descriptor");
    Py_XDECREF(name);
    if (!name)
        return -1;
    for (Py_ssize_t i = 0; i < fetch->count; i++)
        are_slots = are_slots && Py_TYPE(fetch->members[i]) == kind;
    if (are_slots && find_places(fetch, type, kind) < 0)
        return -1;
    if (are_slots) {
        fetch->get = (descrgetfunc)PyType_GetSlot(kind, Py_tp_descr_get);
        fetch->type = (PyTypeObject *)Py_NewRef(type);
    }
    return 0;
}

/* An attribute of an object, a new reference; NULL with an exception. */
static inline PyObject *fetched(const Fetch *fetch, PyObject *object, int which)
{
    if (Py_TYPE(object) == fetch->type) {
        PyObject *lying = NULL;
        if (fetch->places[which])
            memcpy(&lying, (char *)object + fetch->places[which], sizeof lying);
        if (lying)
            return Py_NewRef(lying);
        return fetch->get(fetch->members[which], object, (PyObject *)fetch->type);
    }
    return PyObject_GetAttr(object, fetch->names[which]);
}

/* So many attributes from `first` on, new references; 0 with an exception. */
static int fetch_all(const Fetch *fetch, PyObject *object, int first, int count, PyObject **to)
{
    for (int i = 0; i < count; i++) {
        to[i] = fetched(fetch, object, first + i);
        if (!to[i]) {
            clear_all(to, (size_t)i);
            return 0;
        }
    }
    return 1;
}

#endif
