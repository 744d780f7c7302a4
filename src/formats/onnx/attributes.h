/* attributes.h — the attributes that operators have (attributes.c), and the check of a node's against them. */
#ifndef TN_ONNX_ATTRIBUTES_H
#define TN_ONNX_ATTRIBUTES_H

#include "formats/onnx/model.h"

/* The attributes of an operator from opset `since` on. */
typedef struct onnx_attribute_row {
    const char *name;
    int since;
    const char *attributes;
} onnx_attribute_row;

typedef struct onnx_attribute_table {
    const char *domain;
    const onnx_attribute_row *rows; /* ended by a row without a name */
} onnx_attribute_table;
extern const onnx_attribute_table onnx_attribute_tables[];
extern const int onnx_attribute_table_count;

/* One attribute of a row. */
typedef struct onnx_rule {
    onnx_text name;
    int kind; /* AttributeProto.AttributeType */
    bool required;
    onnx_text allowed; /* empty: any value */
} onnx_rule;
/* Takes the next rule off *attributes; false at the end. */
bool onnx_next_rule(const char **attributes, onnx_rule *rule);

/* Checks the attributes that the node itself has; for those that refer to a calling node's, only that they exist.
 * Errors: TN_ERR_FORMAT for an unknown, missing or twofold attribute or one of the wrong kind; TN_ERR_UNSUPPORTED for a
 * value that is not allowed. */
tn_status onnx_check_attributes(const onnx_node *n);
/* The same for a node in a model function, whose references are followed. */
tn_status onnx_check_references(const onnx_call *c);

#endif
