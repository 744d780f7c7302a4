/* sources.c — see sources.h. */
#include "sources.h"

#include "kir/render.h"
#include "test_support.h"

enum { GROUP = 64 }; /* as hal/driver_module.c has it */

static void write_text(const char *path, const kir_rendering *k) {
    FILE *f = fopen(path, "w");
    if (!f) fail_msg("%s cannot be written", path);
    assert_true(fputs(tn_str_text(&k->text), f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* For compilers of browsers (tools/checks/web.py); what WGSL cannot say is left out. */
static void write_wgsl(const char *folder, const char *name, const kir_program *p) {
    char path[512];
    kir_rendering k;
    kir_target t = {.dialect = &kir_dialect_wgsl, .group_size = GROUP, .index32 = true};
    if (kir_render(p, &t, &k) != TN_OK) return;
    snprintf(path, sizeof path, "%s/%s.wgsl", folder, name);
    write_text(path, &k);
    kir_rendering_free(&k);
}

void sources_write(const char *folder, const char *name, const kir_program *p) {
    static const struct {
        const kir_dialect *dialect;
        const char *end;
    } kinds[] = {{&kir_dialect_cuda, "cu"}, {&kir_dialect_hip, "hip"}};
    bool wide = kir_lanes(p) == KIR_WIDE;
    write_wgsl(folder, name, p);
    for (size_t i = 0; i < TN_COUNT(kinds); i++) {
        bool cuda = kinds[i].dialect == &kir_dialect_cuda;
        /* CUDA has subgroups of 32, and alone wide matrices and shortened f32 */
        if (cuda ? kir_lanes(p) == 64 : wide || kir_shortens(p)) continue;
        for (int narrow = 0; narrow < 2; narrow++) {
            char path[512];
            kir_rendering k;
            kir_target t = {
                .dialect = kinds[i].dialect, .group_size = GROUP, .index32 = narrow, .f64 = true, .i64 = true};
            t.lanes = wide ? 32 : kir_lanes(p);
            t.wide = wide;
            snprintf(path, sizeof path, "%s/%s%s.%s", folder, name, narrow ? "" : "-64", kinds[i].end);
            assert_ok(kir_render(p, &t, &k));
            write_text(path, &k);
            kir_rendering_free(&k);
        }
    }
}

static const char *folder_now, *prefix_now;

void sources_begin(const char *folder, const char *prefix) {
    folder_now = folder;
    prefix_now = prefix;
}

void sources_take(const kir_program *p) {
    char name[80];
    snprintf(name, sizeof name, "%s-%016llx", prefix_now, (unsigned long long)p->hash);
    sources_write(folder_now, name, p);
}
