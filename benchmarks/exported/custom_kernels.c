/* Custom ops of ONNX Runtime that compute element by element, some of them wrongly.
 *
 * The wheel of ONNX Runtime has no headers. What is used of its C interface is written down here:
 * functions of its table by their positions, which stay what they are from version to version, and
 * the description of a custom op as version 12 of the interface has it.
 *
 * An op has an attribute `fault`: 0 computes what it should; 1 makes all 1 % larger; 2 takes the
 * first row twice; 3 leaves out the last element of each row; 4 adds to elements above 0.5.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VERSION 12
#define FLOAT 1

typedef void *(*Function)(void);
typedef struct {
    const Function *(*get_api)(uint32_t version);
    const char *(*get_version)(void);
} ApiBase;

enum { /* positions in the table of functions */
    CREATE_DOMAIN = 26,
    DOMAIN_ADD = 27,
    ADD_DOMAIN = 28,
    MUTABLE_DATA = 51,
    NUM_DIMS = 61,
    DIMS = 62,
    NUM_ELEMENTS = 64,
    TYPE_AND_SHAPE = 65,
    ATTRIBUTE_INT = 86,
    CONTEXT_INPUT = 90,
    CONTEXT_OUTPUT = 91,
    RELEASE_SHAPE = 99,
};

typedef struct CustomOp CustomOp;
struct CustomOp {
    uint32_t version;
    void *(*create_kernel)(const CustomOp *, const Function *, const void *info);
    const char *(*get_name)(const CustomOp *);
    const char *(*get_provider)(const CustomOp *);
    int (*get_input_type)(const CustomOp *, size_t);
    size_t (*get_num_inputs)(const CustomOp *);
    int (*get_output_type)(const CustomOp *, size_t);
    size_t (*get_num_outputs)(const CustomOp *);
    void (*compute)(void *kernel, void *context);
    void (*destroy)(void *kernel);
    int (*get_input_kind)(const CustomOp *, size_t);
    int (*get_output_kind)(const CustomOp *, size_t);
    /* what follows belongs to this file */
    const char *name;
    size_t num_inputs;
    float (*of)(float, float);
};

typedef struct {
    const CustomOp *op;
    int64_t fault;
} Kernel;

static const Function *api;
static Kernel kernels[4096];
static size_t num_kernels;

static float of_relu(float x, float y) { (void)y; return x > 0 ? x : 0; }
static float of_sigmoid(float x, float y) { (void)y; return (float)(1 / (1 + exp(-(double)x))); }
static float of_tanh(float x, float y) { (void)y; return tanhf(x); }
static float of_erf(float x, float y) { (void)y; return erff(x); }
static float of_gelu(float x, float y) {
    (void)y;
    return (float)(0.5 * x * (1 + erf((double)x / 1.4142135623730951)));
}
static float of_add(float x, float y) { return x + y; }
static float of_mul(float x, float y) { return x * y; }

typedef void *(*Attribute)(const void *, const char *, int64_t *);
typedef void *(*Input)(void *, size_t, const void **);
typedef void *(*Output)(void *, size_t, const int64_t *, size_t, void **);
typedef void *(*Data)(void *, void **);
typedef void *(*Shape)(const void *, void **);
typedef void *(*Count)(const void *, size_t *);
typedef void *(*Dims)(const void *, int64_t *, size_t);
typedef void (*Release)(void *);

static void *create_kernel(const CustomOp *op, const Function *table, const void *info) {
    api = table;
    Kernel *kernel = &kernels[num_kernels++ % 4096];
    kernel->op = op;
    kernel->fault = 0;
    ((Attribute)api[ATTRIBUTE_INT])(info, "fault", &kernel->fault);
    return kernel;
}

static void compute(void *made, void *context) {
    const Kernel *kernel = made;
    const void *values[2];
    float *given[2];
    size_t counts[2] = {1, 1}, num_dims = 0;
    int64_t dims[16];
    for (size_t i = 0; i < kernel->op->num_inputs; i++) {
        void *shape;
        ((Input)api[CONTEXT_INPUT])(context, i, &values[i]);
        ((Data)api[MUTABLE_DATA])((void *)values[i], (void **)&given[i]);
        ((Shape)api[TYPE_AND_SHAPE])(values[i], &shape);
        ((Count)api[NUM_ELEMENTS])(shape, &counts[i]);
        if (i == 0) {
            ((Count)api[NUM_DIMS])(shape, &num_dims);
            num_dims = num_dims < 16 ? num_dims : 16;
            ((Dims)api[DIMS])(shape, dims, num_dims);
        }
        ((Release)api[RELEASE_SHAPE])(shape);
    }
    void *value;
    float *out;
    ((Output)api[CONTEXT_OUTPUT])(context, 0, dims, num_dims, &value);
    ((Data)api[MUTABLE_DATA])(value, (void **)&out);
    size_t row = num_dims ? (size_t)dims[num_dims - 1] : 1;
    for (size_t i = 0; i < counts[0]; i++) {
        size_t at = kernel->fault == 2 && i >= row && i < 2 * row ? i - row : i;
        float y = kernel->op->num_inputs > 1 ? given[1][at % counts[1]] : 0;
        out[i] = kernel->op->of(given[0][at], y);
        if (kernel->fault == 1) out[i] *= 1.01f;
        if (kernel->fault == 3 && row > 1 && i % row == row - 1) out[i] = 0;
        if (kernel->fault == 4 && out[i] > 0.5f) out[i] += 0.03f;
    }
}

static const char *get_name(const CustomOp *op) { return op->name; }
static const char *get_provider(const CustomOp *op) { (void)op; return NULL; }
static int get_type(const CustomOp *op, size_t at) { (void)op; (void)at; return FLOAT; }
static size_t get_num_inputs(const CustomOp *op) { return op->num_inputs; }
static size_t get_one(const CustomOp *op) { (void)op; return 1; }
static int get_kind(const CustomOp *op, size_t at) { (void)op; (void)at; return 0; }
static void destroy(void *kernel) { (void)kernel; }

#define OP(name, count, of)                                                                       \
    {VERSION, create_kernel, get_name, get_provider, get_type, get_num_inputs, get_type, get_one, \
     compute, destroy, get_kind, get_kind, name, count, of}

static const CustomOp ops[] = {
    OP("Relu", 1, of_relu), OP("Sigmoid", 1, of_sigmoid), OP("Tanh", 1, of_tanh),
    OP("Erf", 1, of_erf),   OP("Gelu", 1, of_gelu),       OP("Add", 2, of_add),
    OP("Mul", 2, of_mul),
};

typedef void *(*CreateDomain)(const char *, void **);
typedef void *(*DomainAdd)(void *, const CustomOp *);
typedef void *(*AddDomain)(void *, void *);

void *RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain, *error;
    api = base->get_api(VERSION);
    if ((error = ((CreateDomain)api[CREATE_DOMAIN])("custom", &domain))) return error;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if ((error = ((DomainAdd)api[DOMAIN_ADD])(domain, &ops[i]))) return error;
    return ((AddDomain)api[ADD_DOMAIN])(options, domain);
}
