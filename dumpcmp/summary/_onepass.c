/* Adds a run of numbers to extremes, sums and a sketch in one pass over memory.

   What summary.py and sketch.py do with numpy in eight passes over the cache; they say what is
   computed and docs/format.md why. The loops are written for the compiler to vectorise. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "archives hold little-endian numbers; numpy reads them here"
#endif

#define RUN 64      /* consecutive numbers that go to consecutive buckets */
#define BLOCK 16384 /* numbers that share one rotation */
#define CHUNK 2048  /* numbers that stay in the first-level cache between two loops */
#define LINE 64     /* bytes that are fetched together */

#if defined(__GNUC__)
#define PREFETCH(place) __builtin_prefetch(place)
#else
#define PREFETCH(place) (void)(place)
#endif

typedef struct {
    double low, high, sum, squares;
    int64_t zeros;
} Totals;

typedef struct {
    uint64_t key;         /* of the blocks */
    const double *signs;  /* +1 or -1, RUN for each of 512 sign words */
    const int64_t *bases; /* first bucket of each of the 256 runs of a block */
    Py_ssize_t size;      /* buckets; a run may go RUN beyond them */
    double *sums;         /* two rows: of blocks with the common sign +, and of those with - */
} Sketch;

static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline float as_is_float(float number) { return number; }
static inline double as_is_double(double number) { return number; }
static inline float from_bfloat16(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float number;
    memcpy(&number, &word, sizeof number);
    return number;
}

/* `absorb_<NAME>` for numbers that lie in memory as STORED, and are compared as REAL. */
#define DEFINE_ABSORB(NAME, STORED, REAL, NUMBER)                                               \
    static void extremes_##NAME(const STORED *x, Py_ssize_t count, Totals *totals)              \
    {                                                                                           \
        REAL low = NUMBER(x[0]), high = low;                                                    \
        int32_t zeros = 0;                                                                      \
        for (Py_ssize_t i = 0; i < count; i++) {                                                \
            REAL number = NUMBER(x[i]);                                                         \
            low = number < low ? number : low;                                                  \
            high = number > high ? number : high;                                               \
            zeros += number == 0;                                                               \
        }                                                                                       \
        totals->low = low < totals->low ? low : totals->low;                                    \
        totals->high = high > totals->high ? high : totals->high;                               \
        totals->zeros += zeros;                                                                 \
    }                                                                                           \
                                                                                                \
    static void add_run_##NAME(const STORED *restrict x, Py_ssize_t count,                      \
                               const double *restrict signs, double *restrict sums,             \
                               Totals *totals)                                                  \
    {                                                                                           \
        double sum = 0, squares = 0;                                                            \
        for (Py_ssize_t ahead = 0; ahead < RUN; ahead += LINE / (Py_ssize_t)sizeof *x)          \
            PREFETCH(x + CHUNK + ahead);                                                        \
        for (Py_ssize_t l = 0; l < count; l++) {                                                \
            double number = NUMBER(x[l]);                                                       \
            sums[l] += signs[l] * number;                                                       \
            sum += number;                                                                      \
            squares += number * number;                                                         \
        }                                                                                       \
        totals->sum += sum;                                                                     \
        totals->squares += squares;                                                             \
    }                                                                                           \
                                                                                                \
    static Totals absorb_##NAME(const STORED *x, Py_ssize_t count, uint64_t start,              \
                                const Sketch *sketch)                                           \
    {                                                                                           \
        Totals totals = {NUMBER(x[0]), NUMBER(x[0]), 0, 0, 0};                                  \
        Py_ssize_t ready = 0; /* numbers whose extremes are taken */                            \
        uint64_t z = 0, turned = UINT64_MAX;                                                    \
        for (Py_ssize_t i = 0, step; i < count; i += step) {                                    \
            uint64_t at = start + (uint64_t)i, within = at % BLOCK, lane = at % RUN;            \
            if (i == ready) {                                                                   \
                ready = count - i < CHUNK ? count : i + CHUNK;                                  \
                extremes_##NAME(x + i, ready - i, &totals);                                     \
            }                                                                                   \
            if (at / BLOCK != turned)                                                           \
                z = mix(sketch->key + (turned = at / BLOCK));                                   \
            step = RUN - (Py_ssize_t)lane;                                                      \
            step = ready - i < step ? ready - i : step;                                         \
            Py_ssize_t row = z >> 63 ? sketch->size + RUN : 0;                                  \
            int64_t base = sketch->bases[(within / RUN + z) % 256] & (sketch->size - 1);        \
            add_run_##NAME(x + i, step, sketch->signs + RUN * ((z >> 8) % 256) + within,        \
                           sketch->sums + row + base + lane, &totals);                          \
        }                                                                                       \
        return totals;                                                                          \
    }

DEFINE_ABSORB(float, float, float, as_is_float)
DEFINE_ABSORB(double, double, double, as_is_double)
DEFINE_ABSORB(bfloat16, uint16_t, float, from_bfloat16)

static PyObject *absorb(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer numbers, signs, bases, sums;
    unsigned long long start, key;
    int width;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*iKKy*y*w*", &numbers, &width, &start, &key, &signs, &bases,
                          &sums))
        return NULL;
    Py_ssize_t size = sums.len / (Py_ssize_t)(2 * sizeof(double)) - RUN;
    Py_ssize_t count = width > 0 ? numbers.len / width : 0;
    if ((width != 2 && width != 4 && width != 8) || count < 1 || size < RUN ||
        (size & (size - 1)) || signs.len != 512 * RUN * (Py_ssize_t)sizeof(double) ||
        bases.len != 256 * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "absorb: the buffers do not fit together");
    } else {
        Sketch sketch = {key, signs.buf, bases.buf, size, sums.buf};
        Totals totals;
        Py_BEGIN_ALLOW_THREADS
        totals = width == 2   ? absorb_bfloat16(numbers.buf, count, start, &sketch)
                 : width == 4 ? absorb_float(numbers.buf, count, start, &sketch)
                              : absorb_double(numbers.buf, count, start, &sketch);
        Py_END_ALLOW_THREADS
        found = Py_BuildValue("ddddL", totals.low, totals.high, totals.sum, totals.squares,
                              (long long)totals.zeros);
    }
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&signs);
    PyBuffer_Release(&bases);
    PyBuffer_Release(&sums);
    return found;
}

static PyMethodDef methods[] = {
    {"absorb", absorb, METH_VARARGS,
     "Add numbers to a sketch; their minimum, maximum, sum, sum of squares and number of zeros."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_onepass", "Sums of a run of numbers in one pass.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__onepass(void) { return PyModuleDef_Init(&module); }
