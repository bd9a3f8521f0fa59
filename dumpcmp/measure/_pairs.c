/* Measures pairs of values in one pass over memory: what metrics.py does with numpy.

   lanes.py says in which order numbers are added up, metrics.py what is computed; both come to
   the same bits as this file. That is why nothing here may be compiled with -ffast-math, or with
   products and sums contracted. Blocks are independent of each other, so that threads can share
   them; the callers add them up in order. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "archives hold little-endian numbers; numpy reads them here"
#endif
#if !defined(__GNUC__)
#error "vectors are written as GCC and Clang have them; numpy does it here"
#endif

#define LANES 8        /* sums that are taken side by side */
#define PIECE 256      /* numbers that are added up in their own width, before float64 */
#define BLOCK (1 << 17)
#define SAFE_LOW 1e-8  /* magnitudes whose squares float32 can sum */
#define SAFE_HIGH 1e15
#define NEAR 0.25

typedef struct {
    double rms, rtol, atol;
} Terms;

typedef struct {
    double sum[LANES], plain[LANES], rel[LANES];
    double most, most_plain, most_rel; /* of the last piece */
    int64_t far;
    int finite, zeros;
} Errors;

typedef struct {
    double aa[LANES], dd[LANES], da[LANES];
} Products;

typedef struct {
    double sum[LANES], squares[LANES], low, high;
} Extremes;

#if defined(__aarch64__)
#include <arm_neon.h>
#define ATTRIBUTES
#define VECTOR 16
#define REAL float
#define BITS int32_t
#define NAME(word) word##_f
#define LARGER(x, y) vmaxnmq_f32(x, y)
#define SMALLER(x, y) vminnmq_f32(x, y)
#include "_pairs_lanes.h"
#undef REAL
#undef BITS
#undef NAME
#undef LARGER
#undef SMALLER
#define REAL double
#define BITS int64_t
#define NAME(word) word##_d
#define LARGER(x, y) vmaxnmq_f64(x, y)
#define SMALLER(x, y) vminnmq_f64(x, y)
#include "_pairs_lanes.h"
#elif defined(__x86_64__)
#include <immintrin.h>
#define ATTRIBUTES
#define VECTOR 16
#define REAL float
#define BITS int32_t
#define NAME(word) word##_f
#define LARGER(x, y) _mm_max_ps(x, y)
#define SMALLER(x, y) _mm_min_ps(x, y)
#include "_pairs_lanes.h"
#undef REAL
#undef BITS
#undef NAME
#undef LARGER
#undef SMALLER
#define REAL double
#define BITS int64_t
#define NAME(word) word##_d
#define LARGER(x, y) _mm_max_pd(x, y)
#define SMALLER(x, y) _mm_min_pd(x, y)
#include "_pairs_lanes.h"
#undef ATTRIBUTES
#undef VECTOR
#undef REAL
#undef BITS
#undef NAME
#undef LARGER
#undef SMALLER
#define ATTRIBUTES __attribute__((target("avx2")))
#define VECTOR 32
#define REAL float
#define BITS int32_t
#define NAME(word) word##_wide_f
#define LARGER(x, y) _mm256_max_ps(x, y)
#define SMALLER(x, y) _mm256_min_ps(x, y)
#include "_pairs_lanes.h"
#undef REAL
#undef BITS
#undef NAME
#undef LARGER
#undef SMALLER
#define REAL double
#define BITS int64_t
#define NAME(word) word##_wide_d
#define LARGER(x, y) _mm256_max_pd(x, y)
#define SMALLER(x, y) _mm256_min_pd(x, y)
#include "_pairs_lanes.h"
#else
#define ATTRIBUTES
#define VECTOR 16
#define REAL float
#define BITS int32_t
#define NAME(word) word##_f
#define LARGER(x, y) pick_f((m_f)((x) > (y)), x, y)
#define SMALLER(x, y) pick_f((m_f)((x) < (y)), x, y)
#include "_pairs_lanes.h"
#undef REAL
#undef BITS
#undef NAME
#undef LARGER
#undef SMALLER
#define REAL double
#define BITS int64_t
#define NAME(word) word##_d
#define LARGER(x, y) pick_d((m_d)((x) > (y)), x, y)
#define SMALLER(x, y) pick_d((m_d)((x) < (y)), x, y)
#include "_pairs_lanes.h"
#endif

/* The loops that this processor is given; those of float and of double. */
#define LOOPS(REAL)                                                                             \
    void (*squares)(const REAL *, int, double *, double *);                                     \
    void (*survey)(const REAL *, int, double *, double *, double *, double *);                  \
    void (*products)(const REAL *, const REAL *, int, double *, double *, double *);            \
    void (*inner)(const REAL *, const REAL *, int, double *);                                   \
    void (*errors)(const REAL *, const REAL *, int, const Terms *, Errors *);                   \
    void (*differences)(const REAL *, const REAL *, int, REAL *, double *, double *, double *); \
    void (*both)(const REAL *, const REAL *, int, REAL *, Products *, Extremes *,               \
                 const Terms *, Errors *);
typedef struct { LOOPS(float) } Floats;
typedef struct { LOOPS(double) } Doubles;
static Floats floats = {squares_f, survey_f,      products_f, inner_f,
                        errors_f,  differences_f, both_f};
static Doubles doubles = {squares_d, survey_d,      products_d, inner_d,
                          errors_d,  differences_d, both_d};

#if defined(__x86_64__)
#define WIDELY __attribute__((target("avx2")))
static int is_wide; /* whether this processor has AVX2 */
#endif

static void choose_loops(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if ((is_wide = __builtin_cpu_supports("avx2"))) {
        floats = (Floats){squares_wide_f,  survey_wide_f, products_wide_f,
                          inner_wide_f,    errors_wide_f, differences_wide_f, both_wide_f};
        doubles = (Doubles){squares_wide_d, survey_wide_d, products_wide_d,
                            inner_wide_d,   errors_wide_d, differences_wide_d, both_wide_d};
    }
#endif
}

/* ---- numbers from memory ---------------------------------------------------------------- */

enum { F64, F32, F16, BF16, E4M3FN, E5M2, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, NUM_CODES };
static const int WIDTHS[NUM_CODES] = {8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};
static float octets[2][256]; /* what each float8 stands for: e4m3fn, e5m2 */

static inline float float_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline float from_half(uint16_t bits)
{
    uint32_t magnitude = (uint32_t)(bits & 0x7FFF) << 13;
    uint32_t odd = magnitude >= 0x0F800000u ? 0x7F800000u : 0; /* an infinity, a NaN */
    float number = float_of(magnitude) * 0x1p112f;
    uint32_t found;
    memcpy(&found, &number, sizeof found);
    return float_of(found | odd | (uint32_t)(bits & 0x8000) << 16);
}

static void fill_octets(void)
{
    for (int code = 0; code < 256; code++) {
        octets[1][code] = from_half((uint16_t)(code << 8));
        float number = from_half((uint16_t)((code & 128) << 8 | (code & 127) << 7)) * 256;
        octets[0][code] = (code & 127) == 127 ? NAN : number;
    }
}

typedef uint16_t Half __attribute__((aligned(1), may_alias)); /* at whatever address */

/* `count` numbers from the place `start` on, as float; short ones only. */
#define DEFINE_LENGTHEN(NAME, HOW)                                                              \
    HOW static void NAME(const Half *restrict halves, int count, float *restrict room)          \
    {                                                                                           \
        for (int i = 0; i < count; i++)                                                         \
            room[i] = float_of((uint32_t)halves[i] << 16);                                      \
    }

DEFINE_LENGTHEN(lengthen, )
#if defined(__x86_64__)
DEFINE_LENGTHEN(lengthen_widely, WIDELY)
#define LENGTHEN (is_wide ? lengthen_widely : lengthen)
#else
#define LENGTHEN lengthen
#endif

static const float *load_floats(const char *line, int code, Py_ssize_t start, int count,
                                float *room)
{
    const char *from = line + start * WIDTHS[code];
    const Half *halves = (const Half *)(const void *)from;
    if (code == F32) {
        if ((uintptr_t)from % sizeof(float) == 0)
            return (const float *)(const void *)from;
        memcpy(room, from, sizeof(float) * (size_t)count);
    } else if (code == BF16) {
        LENGTHEN(halves, count, room);
    } else if (code == F16) {
        for (int i = 0; i < count; i++)
            room[i] = from_half(halves[i]);
    } else {
        const float *table = octets[code == E5M2];
        for (int i = 0; i < count; i++)
            room[i] = table[(uint8_t)from[i]];
    }
    return room;
}

#define WIDENED(CODE, STORED)                                                                   \
    case CODE: {                                                                                \
        STORED numbers[PIECE];                                                                  \
        memcpy(numbers, from, sizeof(STORED) * (size_t)count);                                  \
        for (int i = 0; i < count; i++)                                                         \
            room[i] = (double)numbers[i];                                                       \
        break;                                                                                  \
    }

static void load_doubles(const char *line, int code, Py_ssize_t start, int count, double *room)
{
    const char *from = line + start * WIDTHS[code];
    float narrow[PIECE];
    switch (code) {
        WIDENED(F64, double)
        WIDENED(I8, int8_t)
        WIDENED(I16, int16_t)
        WIDENED(I32, int32_t)
        WIDENED(I64, int64_t)
        WIDENED(U8, uint8_t)
        WIDENED(U16, uint16_t)
        WIDENED(U32, uint32_t)
        WIDENED(U64, uint64_t)
    case BOOL:
        for (int i = 0; i < count; i++)
            room[i] = from[i] != 0;
        break;
    default: {
        const float *numbers = load_floats(line, code, start, count, narrow);
        for (int i = 0; i < count; i++)
            room[i] = (double)numbers[i];
    }
    }
}

#define COUNTED(CODE, STORED)                                                                   \
    case CODE: {                                                                                \
        STORED numbers[PIECE];                                                                  \
        memcpy(numbers, from, sizeof(STORED) * (size_t)count);                                  \
        for (int i = 0; i < count; i++)                                                         \
            room[i] = (int64_t)numbers[i];                                                      \
        break;                                                                                  \
    }

/* Integers, also those beyond 2 ** 53; of uint64 the bits. */
static void load_integers(const char *line, int code, Py_ssize_t start, int count, int64_t *room)
{
    const char *from = line + start * WIDTHS[code];
    switch (code) {
        COUNTED(I8, int8_t)
        COUNTED(I16, int16_t)
        COUNTED(I32, int32_t)
        COUNTED(I64, int64_t)
        COUNTED(U8, uint8_t)
        COUNTED(U16, uint16_t)
        COUNTED(U32, uint32_t)
        COUNTED(U64, uint64_t)
    default:
        for (int i = 0; i < count; i++)
            room[i] = from[i] != 0;
    }
}

static inline int padded(int count) { return (count + LANES - 1) / LANES * LANES; }

/* The sum of the lanes: of halves, of halves of these, and so on. */
static double folded(double *lanes)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

/* ---- one side --------------------------------------------------------------------------- */

typedef struct {
    double low, high, num_finite, num_nan, num_inf, sum, squares;
} Side;

typedef struct {
    const char *line;
    int code;
} Line;

typedef struct {
    Py_ssize_t start, stop, row; /* `row` numbers a row; `stop` ends one */
} Span;

static int is_safe(double magnitude)
{
    return magnitude == 0 || (SAFE_LOW < magnitude && magnitude < SAFE_HIGH);
}

/* A piece of floats, of which `narrow` has room for a copy. */
static void survey_piece(const float *x, int count, float *narrow, Extremes *found)
{
    if (count % LANES == 0) {
        floats.survey(x, count, found->sum, found->squares, &found->low, &found->high);
        return;
    }
    memmove(narrow, x, sizeof(float) * (size_t)count);
    for (int i = count; i < padded(count); i++)
        narrow[i] = 0;
    floats.squares(narrow, padded(count), found->sum, found->squares);
    for (int i = 0; i < count; i++) {
        found->low = narrow[i] < found->low ? narrow[i] : found->low;
        found->high = narrow[i] > found->high ? narrow[i] : found->high;
    }
}

static void add_extremes(Extremes *row, Side *found)
{
    found->sum += folded(row->sum);
    found->squares += folded(row->squares);
    found->low = row->low < found->low ? row->low : found->low;
    found->high = row->high > found->high ? row->high : found->high;
}

static int is_fine(const Side *found)
{
    return isfinite(found->sum) && is_safe(fmax(-found->low, found->high));
}

static int survey_plainly(Line side, Span span, int wide, Side *found)
{
    float narrow[PIECE];
    double numbers[PIECE];
    *found = (Side){INFINITY, -INFINITY, (double)(span.stop - span.start), 0, 0, 0, 0};
    for (Py_ssize_t row = span.start; row < span.stop; row += span.row) {
        Extremes all = {.low = INFINITY, .high = -INFINITY};
        for (Py_ssize_t at = 0; at < span.row; at += PIECE) {
            int count = (int)(span.row - at < PIECE ? span.row - at : PIECE);
            if (!wide) {
                const float *x = load_floats(side.line, side.code, row + at, count, narrow);
                survey_piece(x, count, narrow, &all);
                continue;
            }
            load_doubles(side.line, side.code, row + at, count, numbers);
            for (int i = count; i < padded(count); i++)
                numbers[i] = 0;
            if (padded(count) == count)
                doubles.survey(numbers, count, all.sum, all.squares, &all.low, &all.high);
            else
                doubles.squares(numbers, padded(count), all.sum, all.squares);
            for (int i = 0; i < count && padded(count) != count; i++) {
                all.low = numbers[i] < all.low ? numbers[i] : all.low;
                all.high = numbers[i] > all.high ? numbers[i] : all.high;
            }
        }
        add_extremes(&all, found);
    }
    return is_fine(found);
}

/* In float64, with what is not finite set aside, in `unit`. */
static void survey_carefully(Line side, Span span, double unit, Side *found)
{
    double numbers[PIECE];
    *found = (Side){INFINITY, -INFINITY, 0, 0, 0, 0, 0};
    for (Py_ssize_t row = span.start; row < span.stop; row += span.row) {
        double sums[LANES] = {0}, squares[LANES] = {0};
        for (Py_ssize_t at = 0; at < span.row; at += PIECE) {
            int count = (int)(span.row - at < PIECE ? span.row - at : PIECE);
            load_doubles(side.line, side.code, row + at, count, numbers);
            for (int i = 0; i < count; i++) {
                double number = numbers[i];
                if (isfinite(number)) {
                    found->low = number < found->low ? number : found->low;
                    found->high = number > found->high ? number : found->high;
                    found->num_finite++;
                    numbers[i] = number / unit;
                } else {
                    found->num_nan += isnan(number);
                    found->num_inf += !isnan(number);
                    numbers[i] = 0;
                }
            }
            for (int i = count; i < padded(count); i++)
                numbers[i] = 0;
            doubles.squares(numbers, padded(count), sums, squares);
        }
        found->sum += folded(sums);
        found->squares += folded(squares);
    }
}

static void survey_block(Line side, Span span, int wide, double unit, Side *found)
{
    if (unit != 1.0 || !survey_plainly(side, span, wide, found))
        survey_carefully(side, span, unit, found);
}

static int is_plain(const Side *side)
{
    double magnitude = fmax(-side->low, side->high);
    return side->num_nan + side->num_inf == 0 && is_safe(magnitude);
}

/* ---- both sides ------------------------------------------------------------------------- */

typedef struct {
    Line golden, target;
    Terms terms;
    int wide, careful, whole; /* float64; what is not finite set aside; integers */
    double unit, shift, rms;
    int ulps;        /* 0: nothing rounds, 1: both are of one dtype, 2: they are not */
    int eps, least;     /* of the coarser dtype: log2 of its eps, its least exponent */
    double ulps_of_all; /* 2 ** digits, with the bit before the point */
} Task;

typedef struct {
    Side target;
    double num_finite, aa, bb, ab, dd, da, a, d, abs_d, max_d, worst, rel, max_rel, plain,
        max_plain, max_row, num_rows, gain, gain_squared, max_ulp, mismatched, apart;
} Sums;

typedef struct {
    Products products;
    double a[LANES], d[LANES], b[LANES], bb[LANES], unused[LANES];
    Extremes target; /* where it was not surveyed before */
} Row;

#define DEFINE_STEPS(NAME, SIGNED, UNSIGNED, HOW)                                               \
    HOW static double steps_##NAME(const char *golden, const char *target, int count)           \
    {                                                                                           \
        const int sign = 8 * (int)sizeof(SIGNED) - 1;                                           \
        const SIGNED top = (SIGNED)(((UNSIGNED)1 << sign) - 1);                                 \
        SIGNED a[PIECE], b[PIECE];                                                              \
        UNSIGNED most = 0;                                                                      \
        memcpy(a, golden, sizeof(SIGNED) * (size_t)count);                                      \
        memcpy(b, target, sizeof(SIGNED) * (size_t)count);                                      \
        for (int i = 0; i < count; i++) {                                                       \
            SIGNED x = (SIGNED)(a[i] & top), y = (SIGNED)(b[i] & top);                          \
            x = a[i] < 0 ? (SIGNED)-x : x;                                                      \
            y = b[i] < 0 ? (SIGNED)-y : y;                                                      \
            UNSIGNED apart = (UNSIGNED)(x > y ? (UNSIGNED)x - (UNSIGNED)y                       \
                                              : (UNSIGNED)y - (UNSIGNED)x);                     \
            most = apart > most ? apart : most;                                                 \
        }                                                                                       \
        return (double)most;                                                                    \
    }

DEFINE_STEPS(8, int8_t, uint8_t, )
DEFINE_STEPS(16, int16_t, uint16_t, )
DEFINE_STEPS(32, int32_t, uint32_t, )
#if defined(__x86_64__) /* SSE2 knows no larger of two unsigned numbers */
DEFINE_STEPS(wide_8, int8_t, uint8_t, WIDELY)
DEFINE_STEPS(wide_16, int16_t, uint16_t, WIDELY)
DEFINE_STEPS(wide_32, int32_t, uint32_t, WIDELY)
#define STEPS(NUMBER) (is_wide ? steps_wide_##NUMBER : steps_##NUMBER)
#else
#define STEPS(NUMBER) steps_##NUMBER
#endif

static double steps_of(const char *golden, const char *target, int width, int count)
{
    if (width == 1)
        return STEPS(8)(golden, target, count);
    if (width == 2)
        return STEPS(16)(golden, target, count);
    if (width == 4)
        return STEPS(32)(golden, target, count);
    uint64_t near = 0;
    double across = 0;
    for (int i = 0; i < count; i++) {
        int64_t a, b;
        memcpy(&a, golden + 8 * i, 8);
        memcpy(&b, target + 8 * i, 8);
        if ((a ^ b) < 0) {
            double sum = (double)(a & INT64_MAX) + (double)(b & INT64_MAX);
            across = sum > across ? sum : across;
        } else {
            uint64_t apart = a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
            near = apart > near ? apart : near;
        }
    }
    return fmax((double)near, across);
}

/* |d| in spacings of the coarser dtype around a; a power of two divides, so nothing rounds. */
static double spacings_of(double a, double d, const Task *task)
{
    int exponent = 0;
    frexp(a, &exponent);
    exponent = exponent - 1 > task->least ? exponent - 1 : task->least;
    return fabs(d) / ldexp(1.0, exponent + task->eps);
}

/* Whether no number of a piece can be more ULPs off than one that was found before.

   A ULP of a is more than |a| / 2 ** digits, so d is less than |d / a| 2 ** digits of them; where
   the target lies in the next lower binade ULPs are half as large, but a is near that binade. */
static int is_near(const Task *task, double most_plain, double max_ulp)
{
    return most_plain < 0.25 &&
           most_plain * task->ulps_of_all / (1 - most_plain) * 1.0001 < max_ulp;
}

static void add_ulps(const Task *task, Py_ssize_t start, int count, const double *a,
                     const double *d, const char *odd, Sums *sums)
{
    const char *golden = task->golden.line + start * WIDTHS[task->golden.code];
    const char *target = task->target.line + start * WIDTHS[task->target.code];
    double most = NAN;
    if (task->ulps == 1 && !odd) {
        most = steps_of(golden, target, WIDTHS[task->golden.code], count);
    } else
        for (int i = 0; i < count; i++)
            if (!odd || !odd[i]) {
                int width = WIDTHS[task->golden.code];
                most = fmax(most, task->ulps == 1
                                      ? steps_of(golden + i * width, target + i * width, width, 1)
                                      : spacings_of(a[i], d[i], task));
            }
    sums->max_ulp = fmax(sums->max_ulp, most);
}

/* Numbers of a piece, both sides and their difference, in the width of the task. */
typedef struct {
    float narrow[4][PIECE];
    double a[PIECE], b[PIECE], d[PIECE];
    char odd[PIECE];
} Room;

static void take_place(double most, const double *d, const float *narrow, int count,
                       Py_ssize_t start, Sums *sums)
{
    int i = 0;
    while (i < count - 1 && (narrow ? (double)fabsf(narrow[i]) : fabs(d[i])) != most)
        i++;
    sums->max_d = most;
    sums->worst = (double)(start + i);
}

static void take_tops(const Errors *errors, Sums *sums)
{
    sums->max_plain = errors->most_plain > sums->max_plain ? errors->most_plain : sums->max_plain;
    sums->max_rel = errors->most_rel > sums->max_rel ? errors->most_rel : sums->max_rel;
}

/* A piece whose numbers are finite and neither shifted nor whole: all in the task's own width. */
static void add_plainly(const Task *task, Py_ssize_t start, int count, Room *room, Row *row,
                        Errors *errors, Sums *sums)
{
    int size = padded(count);
    const float *a = NULL, *d = NULL;
    errors->zeros |= size != count;
    if (task->wide) {
        load_doubles(task->golden.line, task->golden.code, start, count, room->a);
        load_doubles(task->target.line, task->target.code, start, count, room->b);
        for (int i = count; i < size; i++)
            room->a[i] = room->b[i] = 0;
        doubles.differences(room->a, room->b, size, room->d, row->products.aa, row->products.dd, row->products.da);
        doubles.errors(room->a, room->d, size, &task->terms, errors);
    } else {
        const float *b;
        a = load_floats(task->golden.line, task->golden.code, start, count, room->narrow[0]);
        b = load_floats(task->target.line, task->target.code, start, count, room->narrow[1]);
        d = room->narrow[2];
        if (size != count) {
            Products *sum = &row->products;
            survey_piece(b, count, room->narrow[3], &row->target);
            a = memmove(room->narrow[0], a, sizeof(float) * (size_t)count);
            b = memmove(room->narrow[1], b, sizeof(float) * (size_t)count);
            for (int i = count; i < size; i++)
                room->narrow[0][i] = room->narrow[1][i] = 0;
            floats.differences(a, b, size, room->narrow[2], sum->aa, sum->dd, sum->da);
            floats.errors(a, d, size, &task->terms, errors);
        } else
            floats.both(a, b, size, room->narrow[2], &row->products, &row->target, &task->terms,
                        errors);
    }
    sums->num_finite += count;
    if (errors->most > sums->max_d)
        take_place(errors->most, room->d, task->wide ? NULL : d, count, start, sums);
    take_tops(errors, sums);
    if (!task->ulps || is_near(task, errors->most_plain, sums->max_ulp))
        return;
    if (task->ulps == 2 && !task->wide)
        for (int i = 0; i < count; i++)
            room->a[i] = a[i], room->d[i] = d[i];
    add_ulps(task, start, count, room->a, room->d, NULL, sums);
}

static void subtract_whole(const Task *task, Py_ssize_t start, int count, double *d)
{
    int64_t ours[PIECE], theirs[PIECE];
    load_integers(task->golden.line, task->golden.code, start, count, ours);
    load_integers(task->target.line, task->target.code, start, count, theirs);
    for (int i = 0; i < count; i++) {
        uint64_t a = (uint64_t)ours[i], b = (uint64_t)theirs[i];
        int less = task->golden.code == U64 ? b < a : theirs[i] < ours[i];
        d[i] = less ? -(double)(a - b) : (double)(b - a);
    }
}

/* In float64, with the numbers that are not finite set aside. */
static void add_carefully(const Task *task, Py_ssize_t start, int count, Room *room, Row *row,
                          Errors *errors, Sums *sums)
{
    double *a = room->a, *b = room->b, *d = room->d;
    int size = padded(count), num_odd = 0;
    load_doubles(task->golden.line, task->golden.code, start, count, a);
    load_doubles(task->target.line, task->target.code, start, count, b);
    for (int i = 0; i < count; i++) {
        room->odd[i] = !(isfinite(a[i]) && isfinite(b[i]));
        num_odd += room->odd[i];
    }
    for (int i = 0; i < count && num_odd; i++)
        if (room->odd[i]) {
            sums->apart += !(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
            a[i] = b[i] = 0;
        }
    for (int i = count; i < size; i++)
        a[i] = b[i] = d[i] = 0;
    for (int i = 0; i < count; i++)
        d[i] = b[i] - a[i];
    if (task->whole)
        subtract_whole(task, start, count, d);
    errors->zeros = 1;
    doubles.errors(a, d, size, &task->terms, errors);
    for (int i = 0; i < count && task->whole; i++)
        sums->mismatched += d[i] != 0;
    if (errors->most > sums->max_d)
        take_place(errors->most, d, NULL, count, start, sums);
    take_tops(errors, sums);
    if (task->ulps && !(is_near(task, errors->most_plain, sums->max_ulp)))
        add_ulps(task, start, count, a, d, num_odd ? room->odd : NULL, sums);
    sums->num_finite += count - num_odd;
    double shift = task->shift / task->unit;
    if (task->unit != 1.0)
        for (int i = 0; i < count; i++) {
            a[i] /= task->unit;
            b[i] /= task->unit;
            d[i] = b[i] - a[i];
        }
    if (shift != 0)
        for (int i = 0; i < count; i++)
            if (!room->odd[i]) {
                a[i] -= shift;
                b[i] -= shift;
            }
    doubles.products(a, d, size, row->products.aa, row->products.dd, row->products.da);
    doubles.squares(a, size, row->a, row->unused);
    doubles.squares(d, size, row->d, row->unused);
    doubles.squares(b, size, row->b, row->bb);
}

static void end_row(const Task *task, Py_ssize_t length, Row *row, Errors *errors, Sums *sums)
{
    double norm = folded(row->products.aa), error = folded(row->products.dd), along = folded(row->products.da);
    sums->aa += norm;
    sums->dd += error;
    sums->da += along;
    sums->abs_d += folded(errors->sum);
    sums->plain += folded(errors->plain);
    sums->rel += folded(errors->rel);
    sums->num_rows++;
    if (task->careful) {
        double a = folded(row->a), d = folded(row->d), shift = task->shift / task->unit;
        sums->a += a;
        sums->d += d;
        sums->bb += folded(row->bb);
        if (shift != 0) {
            norm = norm + shift * (2 * a + (double)length * shift);
            norm = norm > 0 ? norm : 0;
            along = along + shift * d;
        }
    }
    if (task->rms == 0)
        return;
    double gain = along / (norm > 0 ? norm : 1);
    double level = sqrt(norm) + task->rms / task->unit * sqrt((double)length);
    double most = sqrt(error) / level;
    sums->gain += gain;
    sums->gain_squared += gain * gain;
    sums->max_row = most > sums->max_row ? most : sums->max_row;
}

/* The sum of products of both sides, where they are too far apart to take it from d. */
static double inner_of(const Task *task, Span span, Room *room)
{
    double found = 0;
    for (Py_ssize_t row = span.start; row < span.stop; row += span.row) {
        double sums[LANES] = {0};
        for (Py_ssize_t at = 0; at < span.row; at += PIECE) {
            int count = (int)(span.row - at < PIECE ? span.row - at : PIECE);
            double shift = task->shift / task->unit;
            if (!task->careful && !task->wide) {
                const float *a, *b;
                a = load_floats(task->golden.line, task->golden.code, row + at, count,
                                room->narrow[0]);
                b = load_floats(task->target.line, task->target.code, row + at, count,
                                room->narrow[1]);
                if (padded(count) != count) {
                    memmove(room->narrow[0], a, sizeof(float) * (size_t)count);
                    memmove(room->narrow[1], b, sizeof(float) * (size_t)count);
                    a = room->narrow[0];
                    b = room->narrow[1];
                    for (int i = count; i < padded(count); i++)
                        room->narrow[0][i] = room->narrow[1][i] = 0;
                }
                floats.inner(a, b, padded(count), sums);
                continue;
            }
            load_doubles(task->golden.line, task->golden.code, row + at, count, room->a);
            load_doubles(task->target.line, task->target.code, row + at, count, room->b);
            for (int i = 0; i < count && task->careful; i++)
                if (isfinite(room->a[i]) && isfinite(room->b[i])) {
                    room->a[i] = room->a[i] / task->unit - shift;
                    room->b[i] = room->b[i] / task->unit - shift;
                } else
                    room->a[i] = room->b[i] = 0;
            for (int i = count; i < padded(count); i++)
                room->a[i] = room->b[i] = 0;
            doubles.inner(room->a, room->b, padded(count), sums);
        }
        found += folded(sums);
    }
    return found;
}

static void sum_block(const Task *task, Span span, Room *room, Sums *sums)
{
    const Sums nothing = {.max_d = -1, .worst = (double)span.start, .max_ulp = NAN};
    int zeros = 0, is_known = task->careful || task->wide; /* else it is surveyed on the way */
    *sums = nothing;
    sums->target = (Side){INFINITY, -INFINITY, (double)(span.stop - span.start), 0, 0, 0, 0};
    if (is_known)
        survey_block(task->target, span, task->wide, task->unit, &sums->target);
    if (!task->careful && is_known && !is_plain(&sums->target))
        return; /* the callers see it in `target`, and take more care */
    for (Py_ssize_t start = span.start; start < span.stop; start += span.row) {
        Row row;
        Errors errors = {.zeros = zeros};
        memset(&row, 0, sizeof row);
        row.target.low = INFINITY;
        row.target.high = -INFINITY;
        for (Py_ssize_t at = 0; at < span.row; at += PIECE) {
            int count = (int)(span.row - at < PIECE ? span.row - at : PIECE);
            (task->careful ? add_carefully : add_plainly)(task, start + at, count, room, &row,
                                                          &errors, sums);
        }
        zeros = errors.zeros;
        if (!task->whole)
            sums->mismatched += (double)errors.far;
        end_row(task, span.row, &row, &errors, sums);
        if (!is_known)
            add_extremes(&row.target, &sums->target);
    }
    if (!is_known && !is_fine(&sums->target)) {
        *sums = nothing;
        survey_carefully(task->target, span, task->unit, &sums->target);
        return;
    }
    if (task->rms == 0) /* nothing to be relative to */
        sums->rel = sums->max_rel = 0;
    sums->ab = sums->dd < NEAR * sums->aa ? sums->aa + sums->da : inner_of(task, span, room);
}

/* ---- Python ----------------------------------------------------------------------------- */

/* The span of block `number`: whole rows, and the rest as one short row at the end. */
static Span span_of(Py_ssize_t number, Py_ssize_t size, Py_ssize_t row)
{
    Py_ssize_t step = (BLOCK / row > 1 ? BLOCK / row : 1) * row, whole = size - size % row;
    Py_ssize_t start = number * step;
    if (start >= whole)
        return (Span){whole, size, size - whole};
    return (Span){start, start + step < whole ? start + step : whole, row};
}

static Py_ssize_t num_blocks(Py_ssize_t size, Py_ssize_t row)
{
    Py_ssize_t step = (BLOCK / row > 1 ? BLOCK / row : 1) * row, whole = size - size % row;
    return (whole + step - 1) / step + (whole < size);
}

static int fits(const Py_buffer *line, int code, Py_ssize_t row, Py_ssize_t first,
                Py_ssize_t last, const Py_buffer *found, size_t record)
{
    if (code < 0 || code >= NUM_CODES || row < 1 || line->len < 1 || line->len % WIDTHS[code] ||
        first < 0 || last < first || last > num_blocks(line->len / WIDTHS[code], row) ||
        (size_t)found->len != record * (size_t)(last - first) || (uintptr_t)found->buf % 8) {
        PyErr_SetString(PyExc_ValueError, "pairs: the buffers do not fit together");
        return 0;
    }
    return 1;
}

static int is_short(int code) { return F32 <= code && code <= E5M2; }

static int fit_together(const Py_buffer *golden, const Py_buffer *target, const Task *task,
                        Py_ssize_t row)
{
    int ours = task->golden.code, theirs = task->target.code;
    if (row < 1 || ours < 0 || ours >= NUM_CODES || theirs < 0 || theirs >= NUM_CODES ||
        golden->len < 1 || golden->len % WIDTHS[ours] || target->len % WIDTHS[theirs] ||
        golden->len / WIDTHS[ours] != target->len / WIDTHS[theirs] ||
        (task->ulps == 1 && ours != theirs) || (task->whole && (ours < I8 || theirs < I8)) ||
        (!task->wide && !(is_short(ours) && is_short(theirs)))) {
        PyErr_SetString(PyExc_ValueError, "pairs: the sides do not fit together");
        return 0;
    }
    return 1;
}

static PyObject *survey(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer line, found;
    int code, wide, fine;
    Py_ssize_t row, first, last;
    double unit;
    if (!PyArg_ParseTuple(args, "y*iindnnw*", &line, &code, &wide, &row, &unit, &first, &last,
                          &found))
        return NULL;
    fine = fits(&line, code, row, first, last, &found, sizeof(Side));
    if (fine && !wide && !is_short(code)) {
        PyErr_SetString(PyExc_ValueError, "pairs: such numbers need float64");
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        Py_ssize_t size = line.len / WIDTHS[code];
        for (Py_ssize_t number = first; number < last; number++)
            survey_block((Line){line.buf, code}, span_of(number, size, row), wide, unit,
                         (Side *)found.buf + (number - first));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&line);
    PyBuffer_Release(&found);
    return fine ? Py_NewRef(Py_None) : NULL;
}

static PyObject *sum_up(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer golden, target, found;
    Task task = {0};
    int fine;
    Py_ssize_t row, first, last;
    if (!PyArg_ParseTuple(args, "y*iy*iiiinddddd(iii)nnw*", &golden, &task.golden.code, &target,
                          &task.target.code, &task.wide, &task.careful, &task.whole, &row,
                          &task.unit, &task.shift, &task.rms, &task.terms.rtol, &task.terms.atol,
                          &task.ulps, &task.eps, &task.least, &first, &last,
                          &found))
        return NULL;
    task.golden.line = golden.buf;
    task.target.line = target.buf;
    task.terms.rms = task.rms;
    task.ulps_of_all = ldexp(1.0, 1 - task.eps);
    fine = fit_together(&golden, &target, &task, row) &&
           fits(&golden, task.golden.code, row, first, last, &found, sizeof(Sums));
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        Py_ssize_t size = golden.len / WIDTHS[task.golden.code];
        Room room;
        for (Py_ssize_t number = first; number < last; number++)
            sum_block(&task, span_of(number, size, row), &room,
                      (Sums *)found.buf + (number - first));
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&golden);
    PyBuffer_Release(&target);
    PyBuffer_Release(&found);
    return fine ? Py_NewRef(Py_None) : NULL;
}

/* ---- one pair at once: `measure` of metrics.py, where no unit is needed -------------------- */

#define DOMINATES 0.95
#define TINY 1e-15
#define FEW_ROWS 16

static void add_side(Side *all, const Side *block)
{
    all->low = block->low + 0.0 < all->low ? block->low + 0.0 : all->low;
    all->high = block->high + 0.0 > all->high ? block->high + 0.0 : all->high;
    all->num_finite += block->num_finite;
    all->num_nan += block->num_nan;
    all->num_inf += block->num_inf;
    all->sum += block->sum;
    all->squares += block->squares;
}

static double magnitude_of(const Side *side)
{
    return side->num_finite ? (-side->low > side->high ? -side->low : side->high) : 0;
}

static int is_credible(const Side *side)
{
    return isfinite(side->squares) && (side->squares > 0 || magnitude_of(side) == 0);
}

static void add_sums(Sums *all, const Sums *block)
{
    add_side(&all->target, &block->target);
    all->num_finite += block->num_finite;
    all->aa += block->aa;
    all->bb += block->bb;
    all->ab += block->ab;
    all->dd += block->dd;
    all->da += block->da;
    all->a += block->a;
    all->d += block->d;
    all->abs_d += block->abs_d;
    if (block->max_d > all->max_d) {
        all->max_d = block->max_d;
        all->worst = block->worst;
    }
    all->rel += block->rel;
    all->max_rel = block->max_rel > all->max_rel ? block->max_rel : all->max_rel;
    all->plain += block->plain;
    all->max_plain = block->max_plain > all->max_plain ? block->max_plain : all->max_plain;
    all->max_row = block->max_row > all->max_row ? block->max_row : all->max_row;
    all->num_rows += block->num_rows;
    all->gain += block->gain;
    all->gain_squared += block->gain_squared;
    all->max_ulp = fmax(all->max_ulp, block->max_ulp);
    all->mismatched += block->mismatched;
    all->apart += block->apart;
}

/* Sums over all blocks; 0 where more care is needed than was taken. */
static int sum_all(const Task *task, Py_ssize_t size, Py_ssize_t row, Sums *all)
{
    Room room;
    Sums block;
    Py_ssize_t blocks = num_blocks(size, row);
    *all = (Sums){.target = {INFINITY, -INFINITY, 0, 0, 0, 0, 0}, .max_d = -1, .max_ulp = NAN};
    for (Py_ssize_t number = 0; number < blocks; number++) {
        sum_block(task, span_of(number, size, row), &room, &block);
        if (!task->careful && !is_plain(&block.target))
            return 0;
        add_sums(all, &block);
    }
    return task->careful || !(0 < all->max_d && all->max_d < TINY);
}

static void direction(double aa, double bb, double ab, double da, double dd, double *cosine,
                      double *distance)
{
    if (aa <= 0 || bb <= 0) {
        *cosine = dd != 0 ? NAN : 1;
        *distance = dd != 0 ? NAN : 0;
        return;
    }
    *cosine = ab / sqrt(aa) / sqrt(bb);
    if (dd > NEAR * aa) {
        *cosine = *cosine > -1 ? *cosine : -1;
        *cosine = *cosine < 1 ? *cosine : 1;
        *distance = 1 - *cosine;
        return;
    }
    double apart = dd / bb - da / aa * (da / bb);
    *distance = (apart > 0 ? apart : 0) / (1 + *cosine);
    *cosine = 1 - *distance;
}

static double gain_score(const Sums *sums)
{
    double n = sums->num_rows;
    if (n < FEW_ROWS)
        return NAN;
    double mean = sums->gain / n, variance = sums->gain_squared / n - mean * mean;
    variance = variance > 0 ? variance : 0;
    return variance != 0 ? mean / sqrt(variance / (n - 1)) : copysign(INFINITY, mean);
}

static double pcc(const Side *golden, const Sums *sums)
{
    if (sums->num_finite == 0 || golden->low == golden->high ||
        sums->target.low == sums->target.high)
        return NAN;
    double n = sums->num_finite, a = sums->a, b = sums->a + sums->d, cosine, distance;
    direction(sums->aa - a * a / n, sums->bb - b * b / n, sums->ab - a * b / n,
              sums->da - a * sums->d / n, sums->dd - sums->d * sums->d / n, &cosine, &distance);
    return cosine;
}

static PyObject *extent(const Side *side)
{
    double n = side->num_finite;
    if (n == 0)
        return Py_BuildValue("(ddddnn)", NAN, NAN, NAN, NAN, (Py_ssize_t)side->num_nan,
                             (Py_ssize_t)side->num_inf);
    return Py_BuildValue("(ddddnn)", side->low, side->high, side->sum / n, sqrt(side->squares),
                         (Py_ssize_t)side->num_nan, (Py_ssize_t)side->num_inf);
}

/* What the sums say, in the order of the fields of Metrics from num_finite on. */
static PyObject *told(const Task *task, const Side *golden, const Sums *sums)
{
    double n = sums->num_finite != 0 ? sums->num_finite : NAN, s = task->shift;
    double unknown = sums->dd != 0 ? INFINITY : 0, cosine = NAN, distance = NAN;
    double a = sums->a, b = sums->a + sums->d, m = sums->num_finite;
    double aa = sums->aa + s * (2 * a + m * s), bb = sums->bb + s * (2 * b + m * s);
    double ab = sums->ab + s * (a + b + m * s), da = sums->da + s * sums->d;
    int known = task->rms != 0, any = m != 0;
    if (any)
        direction(aa, bb, ab, da, sums->dd, &cosine, &distance);
    double rel_l2 = aa != 0 ? sqrt(sums->dd / aa) : unknown;
    return Py_BuildValue(
        "(nddddddddddndddddnnNN)", (Py_ssize_t)m, cosine, distance, pcc(golden, sums),
        any ? rel_l2 : NAN, aa != 0 ? da / aa : NAN, gain_score(sums),
        known ? sums->max_row : unknown, sqrt(sums->dd / n), any ? sums->max_d : NAN,
        sums->abs_d / n, (Py_ssize_t)sums->worst, known ? sums->max_rel : unknown,
        known ? sums->rel / n : unknown, sums->plain / n, sums->max_plain, sums->max_ulp,
        (Py_ssize_t)(sums->mismatched + sums->apart), (Py_ssize_t)sums->apart, extent(golden),
        extent(&sums->target));
}

enum { UNIT_NEEDED, SAME, DIFFERENT };

static int measure_pair(Task *task, Py_ssize_t size, Py_ssize_t row, Side *golden, Sums *sums)
{
    Side block;
    Py_ssize_t blocks = num_blocks(size, row);
    *golden = (Side){INFINITY, -INFINITY, 0, 0, 0, 0, 0};
    for (Py_ssize_t number = 0; number < blocks; number++) {
        survey_block(task->golden, span_of(number, size, row), task->wide, 1.0, &block);
        add_side(golden, &block);
    }
    if (!is_credible(golden))
        return UNIT_NEEDED;
    if (task->golden.code == task->target.code &&
        memcmp(task->golden.line, task->target.line,
               (size_t)(size * WIDTHS[task->golden.code])) == 0)
        return SAME;
    double n = golden->num_finite, mean = n != 0 ? golden->sum / n : 0;
    task->rms = n != 0 ? sqrt(golden->squares / n) : 0;
    task->terms.rms = task->rms;
    task->shift = fabs(mean) > DOMINATES * task->rms ? mean : 0;
    task->careful = golden->num_nan + golden->num_inf != 0 || task->shift != 0 || task->whole ||
                    !is_safe(magnitude_of(golden));
    if (!sum_all(task, size, row, sums)) {
        task->careful = 1;
        sum_all(task, size, row, sums);
    }
    if (!task->careful) {
        sums->a = golden->sum;
        sums->bb = sums->target.squares;
        sums->d = sums->target.sum - golden->sum;
    }
    return is_credible(&sums->target) && isfinite(sums->dd) && isfinite(sums->aa) ? DIFFERENT
                                                                                 : UNIT_NEEDED;
}

static PyObject *measure(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer golden, target;
    Task task = {.unit = 1};
    Py_ssize_t row;
    if (!PyArg_ParseTuple(args, "y*y*(iiii(iii))ndd", &golden, &target, &task.golden.code,
                          &task.target.code, &task.wide, &task.whole, &task.ulps, &task.eps,
                          &task.least, &row, &task.terms.rtol, &task.terms.atol))
        return NULL;
    PyObject *found = NULL;
    if (fit_together(&golden, &target, &task, row)) {
        Side side;
        Sums sums;
        int kind;
        task.golden.line = golden.buf;
        task.target.line = target.buf;
        task.ulps_of_all = ldexp(1.0, 1 - task.eps);
        Py_BEGIN_ALLOW_THREADS
        kind = measure_pair(&task, golden.len / WIDTHS[task.golden.code], row, &side, &sums);
        Py_END_ALLOW_THREADS
        if (kind == UNIT_NEEDED)
            found = Py_NewRef(Py_None);
        else if (kind == SAME)
            found = Py_BuildValue("(nN)", (Py_ssize_t)side.num_finite, extent(&side));
        else
            found = told(&task, &side, &sums);
    }
    PyBuffer_Release(&golden);
    PyBuffer_Release(&target);
    return found;
}

static PyObject *same(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer one, other;
    int equal;
    if (!PyArg_ParseTuple(args, "y*y*", &one, &other))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    equal = one.len == other.len && memcmp(one.buf, other.buf, (size_t)one.len) == 0;
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&one);
    PyBuffer_Release(&other);
    return PyBool_FromLong(equal);
}

static PyMethodDef methods[] = {
    {"survey", survey, METH_VARARGS, "Look at one side: a record for each of some blocks."},
    {"sum_up", sum_up, METH_VARARGS, "Measure both sides: a record for each of some blocks."},
    {"measure", measure, METH_VARARGS, "Measure a pair; None where it needs a unit."},
    {"same", same, METH_VARARGS, "Whether two buffers hold the same bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_pairs", "Measures pairs in one pass.", 0, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__pairs(void)
{
    choose_loops();
    fill_octets();
    return PyModuleDef_Init(&module);
}
