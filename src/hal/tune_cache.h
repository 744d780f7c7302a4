/* tune_cache.h — inside the library: the record of measured choices (tune_cache.c). What is measured, and how, is the
 * business of those who have a choice (core/tuner.c). */
#ifndef TN_HAL_TUNE_CACHE_H
#define TN_HAL_TUNE_CACHE_H

#include "base/base.h"
#include "trunnion/tune.h"

tn_tuning tn_tuning_mode(void);
/* Another number whenever plans may come out otherwise than before: part of their keys. */
uint64_t tn_tune_generation(void);
bool tn_tune_find(const char *key, tn_tuned *out);
/* Adds an entry, or replaces the one of this key, here and in the file. Failing to write is no error. */
void tn_tune_put(const tn_tuned *entry);

#endif
