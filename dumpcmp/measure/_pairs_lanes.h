/* The loops over up to PIECE numbers, for one REAL and one size of vector; included once for each.

   NAME(word) makes the names, VECTOR is the number of bytes of a vector, BITS the integers of
   REAL's width and ATTRIBUTES what the compiler must know of the processor. Every sum is LANES
   sums: lane l adds the numbers l, l + LANES, l + 2 LANES, ... one after another, whatever the
   vectors are, so that all processors and numpy come to the same bits. */

typedef REAL NAME(v) __attribute__((vector_size(VECTOR)));
typedef BITS NAME(m) __attribute__((vector_size(VECTOR)));

#define V NAME(v)
#define M NAME(m)
#define PER (VECTOR / (int)sizeof(REAL)) /* numbers of a vector */
#define NUM (LANES / PER)                /* vectors of a step */
#define VECTORS _Pragma("GCC unroll 4") for (int v = 0; v < NUM; v++)

ATTRIBUTES static inline V NAME(abs)(V x)
{
    V minus = -(V){0}; /* the bit of the sign alone */
    return (V)((M)x & ~(M)minus);
}

ATTRIBUTES static inline V NAME(pick)(M yes, V x, V y) { return (V)(((M)x & yes) | ((M)y & ~yes)); }

ATTRIBUTES static inline V NAME(larger)(V x, V y) { return LARGER(x, y); }
ATTRIBUTES static inline V NAME(smaller)(V x, V y) { return SMALLER(x, y); }

ATTRIBUTES static inline V NAME(load)(const REAL *x)
{
    V found;
    memcpy(&found, x, sizeof found);
    return found;
}

ATTRIBUTES static inline void NAME(flush)(const V *lanes, double *sums)
{
    REAL numbers[LANES];
    memcpy(numbers, lanes, sizeof numbers);
    for (int l = 0; l < LANES; l++)
        sums[l] += (double)numbers[l];
}

ATTRIBUTES static inline REAL NAME(top)(const V *lanes)
{
    REAL numbers[LANES], most;
    memcpy(numbers, lanes, sizeof numbers);
    most = numbers[0];
    for (int l = 1; l < LANES; l++)
        most = numbers[l] > most ? numbers[l] : most;
    return most;
}

/* Adds up x and x * x. `count` is a multiple of LANES. */
ATTRIBUTES static void NAME(squares)(const REAL *restrict x, int count, double *sums,
                                     double *squares)
{
    V sum[NUM], square[NUM];
    VECTORS sum[v] = square[v] = (V){0};
    for (int i = 0; i < count; i += LANES)
        VECTORS {
            V number = NAME(load)(x + i + PER * v);
            sum[v] += number;
            square[v] += number * number;
        }
    NAME(flush)(sum, sums);
    NAME(flush)(square, squares);
}

/* The same, and the extremes. */
ATTRIBUTES static void NAME(survey)(const REAL *restrict x, int count, double *sums,
                                    double *squares, double *low, double *high)
{
    V sum[NUM], square[NUM], least[NUM], most[NUM];
    VECTORS {
        sum[v] = square[v] = (V){0};
        least[v] = most[v] = NAME(load)(x);
    }
    for (int i = 0; i < count; i += LANES)
        VECTORS {
            V number = NAME(load)(x + i + PER * v);
            sum[v] += number;
            square[v] += number * number;
            least[v] = NAME(smaller)(number, least[v]);
            most[v] = NAME(larger)(number, most[v]);
        }
    NAME(flush)(sum, sums);
    NAME(flush)(square, squares);
    VECTORS least[v] = -least[v];
    double lowest = -(double)NAME(top)(least), highest = (double)NAME(top)(most);
    *low = lowest < *low ? lowest : *low;
    *high = highest > *high ? highest : *high;
}

/* Adds up a * a, d * d and a * d. */
ATTRIBUTES static void NAME(products)(const REAL *restrict a, const REAL *restrict d, int count,
                                      double *aa, double *dd, double *da)
{
    V norm[NUM], error[NUM], along[NUM];
    VECTORS norm[v] = error[v] = along[v] = (V){0};
    for (int i = 0; i < count; i += LANES)
        VECTORS {
            V x = NAME(load)(a + i + PER * v), apart = NAME(load)(d + i + PER * v);
            norm[v] += x * x;
            error[v] += apart * apart;
            along[v] += x * apart;
        }
    NAME(flush)(norm, aa);
    NAME(flush)(error, dd);
    NAME(flush)(along, da);
}

/* The same of d = b - a, which is kept. */
ATTRIBUTES static void NAME(differences)(const REAL *restrict a, const REAL *restrict b, int count,
                                         REAL *restrict d, double *aa, double *dd, double *da)
{
    V norm[NUM], error[NUM], along[NUM];
    VECTORS norm[v] = error[v] = along[v] = (V){0};
    for (int i = 0; i < count; i += LANES)
        VECTORS {
            V x = NAME(load)(a + i + PER * v), apart = NAME(load)(b + i + PER * v) - x;
            memcpy(d + i + PER * v, &apart, sizeof apart);
            norm[v] += x * x;
            error[v] += apart * apart;
            along[v] += x * apart;
        }
    NAME(flush)(norm, aa);
    NAME(flush)(error, dd);
    NAME(flush)(along, da);
}

/* Adds up a * b. */
ATTRIBUTES static void NAME(inner)(const REAL *restrict a, const REAL *restrict b, int count,
                                   double *ab)
{
    V sum[NUM];
    VECTORS sum[v] = (V){0};
    for (int i = 0; i < count; i += LANES)
        VECTORS sum[v] += NAME(load)(a + i + PER * v) * NAME(load)(b + i + PER * v);
    NAME(flush)(sum, ab);
}

/* Takes in the errors |d|, plain and relative; `zeros`: golden may have zeros among its numbers. */
ATTRIBUTES static inline void NAME(take)(const REAL *restrict a, const REAL *restrict d, int count,
                                         const int zeros, const Terms *terms, Errors *found)
{
    const REAL rms = (REAL)terms->rms, rtol = (REAL)terms->rtol, atol = (REAL)terms->atol;
    V sum[NUM], plain[NUM], rel[NUM], most[NUM], most_plain[NUM], most_rel[NUM];
    M far[NUM];
    VECTORS {
        sum[v] = plain[v] = rel[v] = most[v] = most_plain[v] = most_rel[v] = (V){0};
        far[v] = (M){0};
    }
    for (int i = 0; i < count; i += LANES)
        VECTORS {
            V size = NAME(abs)(NAME(load)(a + i + PER * v));
            V error = NAME(abs)(NAME(load)(d + i + PER * v));
            V quotient = error / size, relative = error / (size + rms);
            sum[v] += error;
            most[v] = NAME(larger)(error, most[v]);
            if (zeros) {
                M some = (M)(size > (V){0});
                V beside = NAME(pick)((M)(error > (V){0}), (V){0} + (REAL)HUGE_VAL, (V){0});
                most_plain[v] = NAME(larger)(NAME(pick)(some, quotient, beside), most_plain[v]);
                plain[v] += (V)((M)quotient & some);
            } else {
                most_plain[v] = NAME(larger)(quotient, most_plain[v]);
                plain[v] += quotient;
            }
            most_rel[v] = NAME(larger)(relative, most_rel[v]);
            rel[v] += relative;
            far[v] -= (M)(error > size * rtol + atol);
        }
    REAL numbers[LANES];
    memcpy(numbers, plain, sizeof numbers);
    REAL total = 0;
    for (int l = 0; l < LANES; l++)
        total += numbers[l];
    found->finite = total - total == 0;
    if (!zeros && !found->finite)
        return; /* 0 / 0, or something over 0: it is taken again */
    NAME(flush)(sum, found->sum);
    NAME(flush)(plain, found->plain);
    NAME(flush)(rel, found->rel);
    found->most = NAME(top)(most);
    found->most_plain = NAME(top)(most_plain);
    found->most_rel = NAME(top)(most_rel);
    BITS counts[LANES];
    memcpy(counts, far, sizeof counts);
    for (int l = 0; l < LANES; l++)
        found->far += counts[l];
}

ATTRIBUTES static void NAME(errors)(const REAL *restrict a, const REAL *restrict d, int count,
                                    const Terms *terms, Errors *found)
{
    if (!found->zeros) {
        NAME(take)(a, d, count, 0, terms, found);
        found->zeros = !found->finite;
        if (found->finite)
            return;
    }
    NAME(take)(a, d, count, 1, terms, found);
    int any = 0; /* where there was one, the next piece is likely to have one too */
    for (int i = 0; i < count; i++)
        any |= a[i] == 0;
    found->zeros = any;
}

#undef V
#undef M
#undef PER
#undef NUM
#undef VECTORS
