/* onnx_svm.c — support vector machines as scikit-learn's exporters write them: regression, one class, one against one,
 * and linear ones without vectors.
 *
 * With probabilities, the votes of each pair of classes become probabilities by a sigmoid (J. Platt 1999), and these
 * are coupled by the iteration of T.-F. Wu, C.-J. Lin, R. C. Weng, "Probability estimates for multi-class
 * classification by pairwise coupling", 2004, algorithm 2. */
#include <math.h>
#include <string.h>

#include "onnx/operator_support.h"

enum { MOST_CLASSES = 4096, MOST_ROUNDS = 100 };

typedef struct machine {
    double *vectors, *weights, *bias, *kernel, *prob_a, *prob_b; /* kernel: gamma, coef0, degree */
    int64_t vector_numbers, weight_count, bias_count, kernel_count, a_count, b_count;
    const int64_t *per_class; /* vectors of each */
    int64_t vectors_all, classes, features;
    onnx_text kind;
} machine;

static void forget(machine *m) {
    void *all[] = {m->vectors, m->weights, m->bias, m->kernel, m->prob_a, m->prob_b};
    for (size_t i = 0; i < TN_COUNT(all); i++)
        tn_mem_free(all[i]);
}

static tn_status gather_svm(const onnx_call *c, machine *m) {
    const struct {
        const char *name;
        double **at;
        int64_t *count;
    } lists[] = {{"support_vectors", &m->vectors, &m->vector_numbers},
                 {"coefficients", &m->weights, &m->weight_count},
                 {"rho", &m->bias, &m->bias_count},
                 {"kernel_params", &m->kernel, &m->kernel_count},
                 {"prob_a", &m->prob_a, &m->a_count},
                 {"prob_b", &m->prob_b, &m->b_count}};
    for (size_t i = 0; i < TN_COUNT(lists); i++)
        TRY(onnx_numbers_of(c, lists[i].name, lists[i].at, lists[i].count));
    m->kind = onnx_string(c, "kernel_type", "LINEAR");
    if (m->bias_count < 1 || (m->kernel_count && m->kernel_count < 3))
        return tn_fail(TN_ERR_FORMAT, "%s: rho or kernel_params is too short", c->row->name);
    return TN_OK;
}

static double kernel(const machine *m, const double *x, const double *y) {
    double gamma = m->kernel_count ? m->kernel[0] : 0, offset = m->kernel_count ? m->kernel[1] : 0, sum = 0;
    bool distance = onnx_is(m->kind, "RBF");
    for (int64_t i = 0; i < m->features; i++)
        sum += distance ? (x[i] - y[i]) * (x[i] - y[i]) : x[i] * y[i];
    if (distance) return exp(-gamma * sum);
    if (onnx_is(m->kind, "POLY")) return pow(gamma * sum + offset, m->kernel_count ? m->kernel[2] : 0);
    return onnx_is(m->kind, "SIGMOID") ? tanh(gamma * sum + offset) : sum;
}

static tn_status wrong_sizes(const onnx_call *c) {
    return tn_fail(TN_ERR_FORMAT, "%s: the attributes of the SVM do not fit each other or the input", c->row->name);
}

/* ---- regression -------------------------------------------------------------------------------------------------- */

tn_status onnx_run_svm_regressor(onnx_call *c) {
    AUTO_ROWS onnx_rows x = {0}, y = {0};
    AUTO_CALL(forget) machine m = {0};
    int64_t n = onnx_int(c, "n_supports", 0);
    bool one_class = onnx_int(c, "one_class", 0) != 0;
    TRY(onnx_read_rows(c, 0, &x));
    m.features = x.width;
    TRY(gather_svm(c, &m));
    if (n < 0 ||
        (n ? m.weight_count < n || m.vector_numbers / n != x.width || m.vector_numbers % n : m.weight_count != x.width))
        return wrong_sizes(c);
    TRY(onnx_make_rows(x.count, 1, &y));
    for (int64_t i = 0; i < x.count; i++) {
        const double *row = x.at + i * x.width;
        double sum = m.bias[0];
        for (int64_t k = 0; k < n; k++)
            sum += m.weights[k] * kernel(&m, row, m.vectors + k * x.width);
        for (int64_t k = 0; k < x.width && !n; k++)
            sum += m.weights[k] * row[k];
        y.at[i] = one_class ? (sum > 0 ? 1 : -1) : sum;
        onnx_transform_row(onnx_transform_of(c), y.at + i, 1);
    }
    return onnx_put_rows(c, 0, &y, TN_F32);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Scores of each pair of classes in `scores`, and how many pairs each class wins. */
static void compare_pairs(const machine *m, const double *kernels, double *scores, double *votes) {
    int64_t pair = 0, first = 0;
    for (int64_t i = 0; i < m->classes; first += m->per_class[i++]) {
        int64_t other = first + m->per_class[i];
        for (int64_t j = i + 1; j < m->classes; other += m->per_class[j++], pair++) {
            double sum = m->bias[pair];
            for (int64_t k = 0; k < m->per_class[i]; k++)
                sum += m->weights[(j - 1) * m->vectors_all + first + k] * kernels[first + k];
            for (int64_t k = 0; k < m->per_class[j]; k++)
                sum += m->weights[i * m->vectors_all + other + k] * kernels[other + k];
            scores[pair] = sum;
            votes[sum > 0 ? i : j]++;
        }
    }
}

/* Probabilities of the classes out of those of the pairs r [n, n]; q, room [n, n] and [n]. */
static void couple(int64_t n, const double *r, double *q, double *qp, double *p) {
    double limit = 0.005 / (double)n;
    for (int64_t t = 0; t < n; t++) {
        p[t] = 1 / (double)n;
        q[t * n + t] = 0;
        for (int64_t j = 0; j < n; j++) {
            if (j == t) continue;
            q[t * n + t] += r[j * n + t] * r[j * n + t];
            q[t * n + j] = -r[j * n + t] * r[t * n + j];
        }
    }
    for (int round = 0; round < MOST_ROUNDS; round++) {
        double pqp = 0, worst = 0;
        for (int64_t t = 0; t < n; t++) {
            qp[t] = 0;
            for (int64_t j = 0; j < n; j++)
                qp[t] += q[t * n + j] * p[j];
            pqp += p[t] * qp[t];
        }
        for (int64_t t = 0; t < n; t++)
            worst = fmax(worst, fabs(qp[t] - pqp));
        if (worst < limit) return;
        for (int64_t t = 0; t < n; t++) {
            double d = (pqp - qp[t]) / q[t * n + t];
            p[t] += d;
            pqp = (pqp + d * (d * q[t * n + t] + 2 * qp[t])) / (1 + d) / (1 + d);
            for (int64_t j = 0; j < n; j++) {
                qp[j] = (qp[j] + d * q[t * n + j]) / (1 + d);
                p[j] /= 1 + d;
            }
        }
    }
}

/* The probabilities of one row; room: 2 n² + n. */
static void estimate(const machine *m, const double *scores, double *room, double *p) {
    int64_t n = m->classes, pair = 0;
    double *r = room, *q = r + n * n, *qp = q + n * n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = i + 1; j < n; j++, pair++) {
            double v = 1 / (1 + exp(scores[pair] * m->prob_a[pair] + m->prob_b[pair]));
            v = fmin(fmax(v, 1e-7), 1 - 1e-7);
            r[i * n + j] = v;
            r[j * n + i] = 1 - v;
        }
    }
    couple(n, r, q, qp, p);
}

typedef struct plan {
    double *kernels, *scores, *votes, *room;
    int64_t pairs, width; /* width: numbers of a row's result */
    bool pairwise, probable, all_positive;
    onnx_transform transform;
} plan;
static void free_plan(plan *p) { tn_mem_free(p->kernels); }

/* One row: its scores into `out`, its class returned. */
static int64_t classify(const machine *m, const plan *p, const double *x, double *out) {
    if (!p->pairwise) {
        for (int64_t k = 0; k < m->classes; k++) {
            out[k] = m->bias[k < m->bias_count ? k : 0];
            for (int64_t f = 0; f < m->features; f++)
                out[k] += m->weights[k * m->features + f] * x[f];
        }
        int64_t best = m->classes == 1 ? out[0] > 0 : onnx_largest(out, m->classes);
        onnx_transform_row(p->transform, out, m->classes);
        return best;
    }
    for (int64_t k = 0; k < m->vectors_all; k++)
        p->kernels[k] = kernel(m, x, m->vectors + k * m->features);
    memset(p->votes, 0, (size_t)m->classes * sizeof *p->votes);
    compare_pairs(m, p->kernels, p->scores, p->votes);
    int64_t best = onnx_largest(p->votes, m->classes);
    if (p->probable) {
        estimate(m, p->scores, p->room, out);
        best = m->classes == 2 ? best : onnx_largest(p->votes, m->classes);
    } else {
        memcpy(out, p->scores, (size_t)p->pairs * sizeof *out);
        if (p->pairs == 1) { /* one score for two classes */
            out[1] = out[0];
            out[0] = -out[1];
        }
    }
    onnx_transform_row(p->transform, out, p->width);
    return best;
}

static tn_status prepare_svm(const onnx_call *c, machine *m, plan *p) {
    int counted = 0;
    TRY(gather_svm(c, m));
    m->per_class = onnx_ints(c, "vectors_per_class", &counted);
    m->classes = tn_max64(onnx_label_count(c, "classlabels_ints"), 1);
    if (m->classes > MOST_CLASSES) return onnx_refuse(c, "%lld classes are not supported", (long long)m->classes);
    for (int i = 0; i < counted; i++)
        if (m->per_class[i] < 0 || m->per_class[i] > ONNX_MOST_NUMBERS)
            return wrong_sizes(c);
        else
            m->vectors_all += m->per_class[i];
    p->pairwise = m->vectors_all > 0;
    p->pairs = m->classes * (m->classes - 1) / 2;
    p->probable = p->pairwise && m->a_count > 0;
    p->transform = onnx_transform_of(c);
    p->width = !p->pairwise || p->probable ? m->classes : p->pairs == 1 ? 2 : p->pairs;
    bool fit = p->pairwise
                   ? counted == m->classes && m->bias_count >= p->pairs && m->classes > 1 &&
                         m->vector_numbers / m->vectors_all == m->features && m->vector_numbers % m->vectors_all == 0 &&
                         m->weight_count >= (m->classes - 1) * m->vectors_all
                   : m->weight_count == m->classes * m->features;
    if (!fit || (p->probable && (m->a_count < p->pairs || m->b_count < p->pairs))) return wrong_sizes(c);
    p->kernels = tn_mem_zalloc((size_t)(m->vectors_all + p->pairs + m->classes * (2 * m->classes + 2)), sizeof(double));
    if (!p->kernels) return tn_error_code();
    p->scores = p->kernels + m->vectors_all;
    p->votes = p->scores + p->pairs;
    p->room = p->votes + m->classes;
    return TN_OK;
}

tn_status onnx_run_svm_classifier(onnx_call *c) {
    AUTO_ROWS onnx_rows x = {0}, y = {0};
    AUTO_CALL(forget) machine m = {0};
    AUTO_CALL(free_plan) plan p = {0};
    TRY(onnx_read_rows(c, 0, &x));
    m.features = x.width;
    TRY(prepare_svm(c, &m, &p));
    AUTO_FREE int64_t *best = tn_mem_zalloc((size_t)x.count, sizeof *best);
    if (!best) return TN_ERR_MEMORY;
    TRY(onnx_make_rows(x.count, p.width, &y));
    for (int64_t i = 0; i < x.count; i++)
        best[i] = classify(&m, &p, x.at + i * x.width, y.at + i * p.width);
    TRY(onnx_put_labels(c, 0, "classlabels_ints", best, x.count));
    return onnx_wants(c, 1) ? onnx_put_rows(c, 1, &y, TN_F32) : TN_OK;
}
