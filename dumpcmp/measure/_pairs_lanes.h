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

ATTRIBUTES static inline void NAME(spread)(V *least, const V *most, double *low, double *high)
{
    VECTORS least[v] = -least[v];
    double lowest = -(double)NAME(top)(least), highest = (double)NAME(top)(most);
    *low = lowest < *low ? lowest : *low;
    *high = highest > *high ? highest : *high;
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
    NAME(spread)(least, most, low, high);
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

ATTRIBUTES static inline void NAME(end_errors)(const V *sum, const V *plain, const V *rel,
                                               const V *most, const V *most_plain,
                                               const V *most_rel, const M *far, const int zeros,
                                               Errors *found)
{
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
    NAME(end_errors)(sum, plain, rel, most, most_plain, most_rel, far, zeros, found);
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

/* What `differences`, `errors` and, of b, `survey` do, in one loop: divisions take their time, and
   the other sums are taken meanwhile. One vector of a step goes through the whole piece before the
   next one does, so that all sums stay in registers. */
ATTRIBUTES static void NAME(both)(const REAL *restrict a, const REAL *restrict b, int count,
                                  REAL *restrict d, Products *row, Extremes *side,
                                  const Terms *terms, Errors *found)
{
    if (found->zeros) {
        NAME(differences)(a, b, count, d, row->aa, row->dd, row->da);
        NAME(survey)(b, count, side->sum, side->squares, &side->low, &side->high);
        NAME(errors)(a, d, count, terms, found);
        return;
    }
    const REAL rms = (REAL)terms->rms, rtol = (REAL)terms->rtol, atol = (REAL)terms->atol;
    V norm[NUM], square[NUM], along[NUM], sum[NUM], plain[NUM], rel[NUM], most[NUM];
    V most_plain[NUM], most_rel[NUM], whole[NUM], own[NUM], least[NUM], largest[NUM];
    M far[NUM];
    VECTORS {
        V n = {0}, dd = {0}, da = {0}, s = {0}, p = {0}, r = {0}, m = {0}, mp = {0}, mr = {0};
        V bs = {0}, bb = {0}, low = NAME(load)(b), high = low;
        V before = {0}, relative_before = {0}; /* quotients that are ready by now */
        M f = {0};
        for (int i = PER * v; i < count; i += LANES) {
            V x = NAME(load)(a + i), y = NAME(load)(b + i), apart = y - x;
            V size = NAME(abs)(x), error = NAME(abs)(apart);
            V quotient = error / size, relative = error / (size + rms);
            memcpy(d + i, &apart, sizeof apart);
            n += x * x;
            dd += apart * apart;
            da += x * apart;
            bs += y;
            bb += y * y;
            low = NAME(smaller)(y, low);
            high = NAME(larger)(y, high);
            s += error;
            m = NAME(larger)(error, m);
            f -= (M)(error > size * rtol + atol);
            mp = NAME(larger)(before, mp);
            p += before;
            mr = NAME(larger)(relative_before, mr);
            r += relative_before;
            before = quotient, relative_before = relative;
        }
        mp = NAME(larger)(before, mp), p += before;
        mr = NAME(larger)(relative_before, mr), r += relative_before;
        norm[v] = n, square[v] = dd, along[v] = da, sum[v] = s, plain[v] = p, rel[v] = r;
        most[v] = m, most_plain[v] = mp, most_rel[v] = mr, far[v] = f;
        whole[v] = bs, own[v] = bb, least[v] = low, largest[v] = high;
    }
    NAME(flush)(norm, row->aa);
    NAME(flush)(square, row->dd);
    NAME(flush)(along, row->da);
    NAME(flush)(whole, side->sum);
    NAME(flush)(own, side->squares);
    NAME(spread)(least, largest, &side->low, &side->high);
    NAME(end_errors)(sum, plain, rel, most, most_plain, most_rel, far, 0, found);
    found->zeros = !found->finite;
    if (!found->finite)
        NAME(errors)(a, d, count, terms, found); /* 0 / 0, or something over 0 */
}

#undef V
#undef M
#undef PER
#undef NUM
#undef VECTORS
