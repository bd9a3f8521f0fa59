/* Records of the ring that are not written yet, the oldest first: what the thread that lays them
   down tells the one that writes them.

   What C lays down is told by numbers that lie in one piece, and by objects that are there anyway:
   what was made for each record by one thread, and freed by the other, came from one core's cache
   into the other's and back. What Python lays down is told by a tuple, as finishing.py has it. The
   interpreter's lock is held by whoever is at them. */

#ifndef DUMPCMP_ENTRIES_H
#define DUMPCMP_ENTRIES_H

#include <Python.h>

#include <stdint.h>
#include <string.h>

#define ENTRIES "dumpcmp.entries" /* the name of a capsule with them */
#define DIGEST_NBYTES 32
#define FEWEST_ENTRIES 64

enum { CALL = 2, FORM = 3, VALUE = 4, LINK = 5 };

/* Owns its objects. */
typedef struct {
    PyObject *told;        /* all that follows, where Python says it; then nothing else is set */
    PyObject *part, *what; /* `what`: its form, or the Call */
    uint32_t kind, call, number; /* the number of its form */
    Py_ssize_t place, total;
    uint64_t order;
    union {
        char digest[DIGEST_NBYTES];
        PyObject *wording; /* of a call */
        struct {
            PyObject *holder, *first;
            uint64_t row;
        } to; /* of a link */
    };
} Entry;

typedef struct {
    Entry *entries;
    size_t room, first, count; /* room for a power of two */
} Entries;

static inline Entry *entry_at(Entries *all, size_t which)
{
    return &all->entries[(all->first + which) & (all->room - 1)];
}

/* Have room for twice as many; 0, or -1 with an exception. */
static int widen(Entries *all)
{
    size_t room = all->room ? 2 * all->room : FEWEST_ENTRIES;
    Entry *entries = PyMem_Malloc(room * sizeof *entries);
    if (!entries) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < all->count; i++)
        entries[i] = *entry_at(all, i);
    PyMem_Free(all->entries);
    all->entries = entries;
    all->room = room;
    all->first = 0;
    return 0;
}

/* Whether there is room for one more; 0 with an exception. */
static inline int has_room(Entries *all)
{
    return all->count < all->room || widen(all) == 0;
}

/* Add one with its objects, where there is room. */
static inline void add_entry(Entries *all, const Entry *entry)
{
    if (!all->count)
        all->first = 0; /* where the memory is in the cache */
    *entry_at(all, all->count++) = *entry;
}

/* Take the oldest of those that are there, with its objects. */
static inline Entry take_entry(Entries *all)
{
    Entry taken = *entry_at(all, 0);
    all->first = (all->first + 1) & (all->room - 1);
    all->count--;
    return taken;
}

static inline void drop_entry(Entry *entry)
{
    Py_XDECREF(entry->told);
    if (entry->told)
        return;
    Py_XDECREF(entry->part);
    Py_XDECREF(entry->what);
    if (entry->kind == CALL)
        Py_XDECREF(entry->wording);
    if (entry->kind == LINK) {
        Py_XDECREF(entry->to.holder);
        Py_XDECREF(entry->to.first);
    }
}

/* An entry as finishing.py has it, a new reference. */
static PyObject *told_entry(const Entry *entry)
{
    Py_ssize_t place = entry->place, total = entry->total;
    int kind = (int)entry->kind;
    if (entry->told)
        return Py_NewRef(entry->told);
    if (kind == CALL)
        return Py_BuildValue("(iOnnOO)", kind, entry->part, place, total, entry->what,
                             entry->wording);
    if (kind == FORM)
        return Py_BuildValue("(iOnnO)", kind, entry->part, place, total, entry->what);
    if (kind == LINK)
        return Py_BuildValue("(iOnn(IOIK)OKO)", kind, entry->part, place, total, entry->call,
                             entry->what, entry->number, (unsigned long long)entry->order,
                             entry->to.holder, (unsigned long long)entry->to.row,
                             entry->to.first);
    return Py_BuildValue("(iOnnIOIKOs#)", kind, entry->part, place, total, entry->call, entry->what,
                         entry->number, (unsigned long long)entry->order, Py_None, entry->digest,
                         (Py_ssize_t)DIGEST_NBYTES);
}

#endif
