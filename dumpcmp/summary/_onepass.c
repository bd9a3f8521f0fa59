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
    const uint64_t *words; /* the sign words themselves: bit l is set for -1 */
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

/* ---- the same by AVX2 ------------------------------------------------------------------- */

/* SSE2 adds two float64 at once, and reads 8 bytes of signs for a number of 4 or 2. Here four are
   added, and a sign is a bit of a word that is moved on: shifted to the place of the sign, it turns
   it. A run is walked from its end, so that a shift by four brings the next signs. Squares of short
   floats are exact in float64, so that a fused product rounds as two operations do. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx2,fma")))

typedef struct {
    __m256 low, high;
    __m256i zeros;
    __m256d sum[2], squares[2];
} Lanes;

static inline WIDE __m256 eight_float(const float *x) { return _mm256_loadu_ps(x); }
static inline WIDE __m256d four_float(const float *x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
static inline WIDE __m256 eight_bfloat16(const uint16_t *x)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
static inline WIDE __m256d four_bfloat16(const uint16_t *x)
{
    __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)x));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(bits, 16)));
}

static inline WIDE void add_four(__m256d numbers, __m256i *turns, double *sums, __m256d *sum,
                                 __m256d *squares)
{
    const __m256i sign = _mm256_set1_epi64x(INT64_MIN);
    __m256d turn = _mm256_castsi256_pd(_mm256_and_si256(*turns, sign));
    *turns = _mm256_slli_epi64(*turns, 4);
    _mm256_storeu_pd(sums, _mm256_add_pd(_mm256_loadu_pd(sums), _mm256_xor_pd(numbers, turn)));
    *sum = _mm256_add_pd(*sum, numbers);
    *squares = _mm256_fmadd_pd(numbers, numbers, *squares);
}

static inline WIDE double sum_of(__m256d lanes)
{
    double each[4];
    _mm256_storeu_pd(each, lanes);
    return (each[0] + each[1]) + (each[2] + each[3]);
}

static WIDE void end_lanes(const Lanes *lanes, Totals *totals)
{
    float low[8], high[8];
    int32_t zeros[8];
    _mm256_storeu_ps(low, lanes->low);
    _mm256_storeu_ps(high, lanes->high);
    _mm256_storeu_si256((__m256i *)zeros, lanes->zeros);
    for (int l = 0; l < 8; l++) {
        totals->low = low[l] < totals->low ? low[l] : totals->low;
        totals->high = high[l] > totals->high ? high[l] : totals->high;
        totals->zeros += zeros[l];
    }
    totals->sum += sum_of(_mm256_add_pd(lanes->sum[0], lanes->sum[1]));
    totals->squares += sum_of(_mm256_add_pd(lanes->squares[0], lanes->squares[1]));
}

/* `wide_<NAME>` takes the whole runs of one block: `within` is where they begin in it. */
#define DEFINE_WIDE(NAME, STORED)                                                               \
    static WIDE void wide_##NAME(const STORED *x, Py_ssize_t num_runs, uint64_t within,         \
                                 uint64_t z, const Sketch *sketch, Totals *totals)              \
    {                                                                                           \
        double *row = sketch->sums + (z >> 63 ? sketch->size + RUN : 0);                        \
        const uint64_t *words = sketch->words + ((z >> 8) % 256 + within / RUN);                \
        __m256 first = eight_##NAME(x);                                                         \
        Lanes at = {first, first, _mm256_setzero_si256(),                                       \
                    {_mm256_setzero_pd(), _mm256_setzero_pd()},                                 \
                    {_mm256_setzero_pd(), _mm256_setzero_pd()}};                                \
        for (Py_ssize_t run = 0; run < num_runs; run++, x += RUN) {                             \
            uint64_t which = (within / RUN + (uint64_t)run + z) % 256, word = words[run];       \
            double *sums = row + (sketch->bases[which] & (sketch->size - 1));                   \
            __m256i turns = _mm256_set_epi64x((int64_t)word, (int64_t)(word << 1),              \
                                              (int64_t)(word << 2), (int64_t)(word << 3));      \
            for (int ahead = 0; ahead < RUN; ahead += LINE / (int)sizeof *x)                    \
                PREFETCH(x + CHUNK + ahead);                                                    \
            for (int l = RUN - 8; l >= 0; l -= 8) {                                             \
                __m256 numbers = eight_##NAME(x + l);                                           \
                __m256 is_zero = _mm256_cmp_ps(numbers, _mm256_setzero_ps(), _CMP_EQ_OQ);       \
                at.low = _mm256_min_ps(at.low, numbers);                                        \
                at.high = _mm256_max_ps(at.high, numbers);                                      \
                at.zeros = _mm256_sub_epi32(at.zeros, _mm256_castps_si256(is_zero));            \
                add_four(four_##NAME(x + l + 4), &turns, sums + l + 4, at.sum, at.squares);     \
                add_four(four_##NAME(x + l), &turns, sums + l, at.sum + 1, at.squares + 1);     \
            }                                                                                   \
        }                                                                                       \
        end_lanes(&at, totals);                                                                 \
    }

static Totals both(Totals one, Totals other)
{
    one.low = other.low < one.low ? other.low : one.low;
    one.high = other.high > one.high ? other.high : one.high;
    one.sum += other.sum;
    one.squares += other.squares;
    one.zeros += other.zeros;
    return one;
}

/* `absorb_<WIDTH>_<NAME>` does the same of any numbers, by `<WIDTH>_<NAME>` of whole runs. */
#define DEFINE_ABSORB_BY(WIDTH, TARGET, NAME, STORED)                                           \
    static TARGET Totals absorb_##WIDTH##_##NAME(const STORED *x, Py_ssize_t count,             \
                                                 uint64_t start, const Sketch *sketch)          \
    {                                                                                           \
        Py_ssize_t head = (Py_ssize_t)((RUN - start % RUN) % RUN), i;                           \
        if (count < head + RUN)                                                                 \
            return absorb_##NAME(x, count, start, sketch);                                      \
        Totals totals = absorb_##NAME(x, head ? head : RUN, start, sketch);                     \
        for (i = head ? head : RUN; count - i >= RUN;) {                                        \
            uint64_t at = start + (uint64_t)i, within = at % BLOCK;                             \
            Py_ssize_t num_runs = (count - i) / RUN, left = (Py_ssize_t)(BLOCK - within) / RUN; \
            num_runs = num_runs < left ? num_runs : left;                                       \
            WIDTH##_##NAME(x + i, num_runs, within, mix(sketch->key + at / BLOCK), sketch,      \
                           &totals);                                                            \
            i += num_runs * RUN;                                                                \
        }                                                                                       \
        return i < count ? both(totals, absorb_##NAME(x + i, count - i, start + (uint64_t)i,    \
                                                      sketch))                                  \
                         : totals;                                                              \
    }

DEFINE_WIDE(float, float)
DEFINE_WIDE(bfloat16, uint16_t)
DEFINE_ABSORB_BY(wide, WIDE, float, float)
DEFINE_ABSORB_BY(wide, WIDE, bfloat16, uint16_t)

/* ---- and by AVX-512, eight at once ------------------------------------------------------ */

#define WIDEST __attribute__((target("avx512f")))
#define TURNED 0x78 /* the bits of the first, turned where those of both others are set */

static inline WIDEST __m512 sixteen_float(const float *x) { return _mm512_loadu_ps(x); }
static inline WIDEST __m512d doubles_float(const float *x)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(x));
}
static inline WIDEST __m512 sixteen_bfloat16(const uint16_t *x)
{
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)x));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
static inline WIDEST __m512d doubles_bfloat16(const uint16_t *x)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
}

static inline WIDEST void add_eight(__m512d numbers, __m512i *turns, double *sums, __m512d *sum,
                                    __m512d *squares)
{
    const __m512i sign = _mm512_set1_epi64(INT64_MIN);
    __m512i turned = _mm512_ternarylogic_epi64(_mm512_castpd_si512(numbers), *turns, sign, TURNED);
    *turns = _mm512_slli_epi64(*turns, 8);
    _mm512_storeu_pd(sums, _mm512_add_pd(_mm512_loadu_pd(sums), _mm512_castsi512_pd(turned)));
    *sum = _mm512_add_pd(*sum, numbers);
    *squares = _mm512_fmadd_pd(numbers, numbers, *squares);
}

#define DEFINE_WIDEST(NAME, STORED)                                                             \
    static WIDEST void widest_##NAME(const STORED *x, Py_ssize_t num_runs, uint64_t within,     \
                                     uint64_t z, const Sketch *sketch, Totals *totals)          \
    {                                                                                           \
        double *row = sketch->sums + (z >> 63 ? sketch->size + RUN : 0);                        \
        const uint64_t *words = sketch->words + ((z >> 8) % 256 + within / RUN);                \
        const __m512i moves = _mm512_set_epi64(0, 1, 2, 3, 4, 5, 6, 7);                         \
        __m512 low = sixteen_##NAME(x), high = low;                                             \
        __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};                            \
        __m512d squares[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};                        \
        int64_t zeros = 0;                                                                      \
        for (Py_ssize_t run = 0; run < num_runs; run++, x += RUN) {                             \
            uint64_t which = (within / RUN + (uint64_t)run + z) % 256;                          \
            double *sums = row + (sketch->bases[which] & (sketch->size - 1));                   \
            __m512i turns = _mm512_sllv_epi64(_mm512_set1_epi64((int64_t)words[run]), moves);   \
            for (int ahead = 0; ahead < RUN; ahead += LINE / (int)sizeof *x)                    \
                PREFETCH(x + CHUNK + ahead);                                                    \
            for (int l = RUN - 16; l >= 0; l -= 16) {                                           \
                __m512 numbers = sixteen_##NAME(x + l);                                         \
                low = _mm512_min_ps(low, numbers);                                              \
                high = _mm512_max_ps(high, numbers);                                            \
                zeros += __builtin_popcount(                                                    \
                    _mm512_cmp_ps_mask(numbers, _mm512_setzero_ps(), _CMP_EQ_OQ));              \
                add_eight(doubles_##NAME(x + l + 8), &turns, sums + l + 8, sum, squares);       \
                add_eight(doubles_##NAME(x + l), &turns, sums + l, sum + 1, squares + 1);       \
            }                                                                                   \
        }                                                                                       \
        float least = _mm512_reduce_min_ps(low), most = _mm512_reduce_max_ps(high);             \
        totals->low = least < totals->low ? least : totals->low;                                \
        totals->high = most > totals->high ? most : totals->high;                               \
        totals->zeros += zeros;                                                                 \
        totals->sum += _mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1]));                     \
        totals->squares += _mm512_reduce_add_pd(_mm512_add_pd(squares[0], squares[1]));         \
    }

DEFINE_WIDEST(float, float)
DEFINE_WIDEST(bfloat16, uint16_t)
DEFINE_ABSORB_BY(widest, WIDEST, float, float)
DEFINE_ABSORB_BY(widest, WIDEST, bfloat16, uint16_t)

static int width_here(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    return 1 + (__builtin_cpu_supports("avx512f") != 0);
}
#else
#define absorb_wide_float absorb_float
#define absorb_wide_bfloat16 absorb_bfloat16
#define absorb_widest_float absorb_float
#define absorb_widest_bfloat16 absorb_bfloat16
static int width_here(void) { return 0; }
#endif

/* Which loops are taken: 0 those for any processor, 1 by AVX2, 2 by AVX-512. */
static int loops, most_loops;

typedef Totals (*AbsorbFloat)(const float *, Py_ssize_t, uint64_t, const Sketch *);
typedef Totals (*AbsorbBFloat16)(const uint16_t *, Py_ssize_t, uint64_t, const Sketch *);
static const AbsorbFloat floats[] = {absorb_float, absorb_wide_float, absorb_widest_float};
static const AbsorbBFloat16 bfloat16s[] = {absorb_bfloat16, absorb_wide_bfloat16,
                                           absorb_widest_bfloat16};

static PyObject *absorb(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer numbers, signs, words, bases, sums;
    unsigned long long start, key;
    int width;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(args, "y*iKKy*y*y*w*", &numbers, &width, &start, &key, &signs, &words,
                          &bases, &sums))
        return NULL;
    Py_ssize_t size = sums.len / (Py_ssize_t)(2 * sizeof(double)) - RUN;
    Py_ssize_t count = width > 0 ? numbers.len / width : 0;
    if ((width != 2 && width != 4 && width != 8) || count < 1 || size < RUN ||
        (size & (size - 1)) || signs.len != 512 * RUN * (Py_ssize_t)sizeof(double) ||
        words.len != 512 * (Py_ssize_t)sizeof(uint64_t) ||
        bases.len != 256 * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "absorb: the buffers do not fit together");
    } else {
        Sketch sketch = {key, signs.buf, words.buf, bases.buf, size, sums.buf};
        Totals totals;
        Py_BEGIN_ALLOW_THREADS
        if (width == 8)
            totals = absorb_double(numbers.buf, count, start, &sketch);
        else if (width == 4)
            totals = floats[loops](numbers.buf, count, start, &sketch);
        else
            totals = bfloat16s[loops](numbers.buf, count, start, &sketch);
        Py_END_ALLOW_THREADS
        found = Py_BuildValue("ddddL", totals.low, totals.high, totals.sum, totals.squares,
                              (long long)totals.zeros);
    }
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&signs);
    PyBuffer_Release(&words);
    PyBuffer_Release(&bases);
    PyBuffer_Release(&sums);
    return found;
}

/* Take the loops of this number, or the widest that the processor has, so that each can be tried;
   gives which are taken. */
static PyObject *take_loops(PyObject *self, PyObject *number)
{
    (void)self;
    long asked = PyLong_AsLong(number);
    if (asked < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no loops %ld", asked);
    loops = asked < most_loops ? (int)asked : most_loops;
    return PyLong_FromLong(loops);
}

static PyMethodDef methods[] = {
    {"take_loops", take_loops, METH_O, "Take the loops for this width of vectors; gives which."},
    {"absorb", absorb, METH_VARARGS,
     "Add numbers to a sketch; their minimum, maximum, sum, sum of squares and number of zeros."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_onepass", "Sums of a run of numbers in one pass.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__onepass(void)
{
    loops = most_loops = width_here();
    return PyModuleDef_Init(&module);
}
