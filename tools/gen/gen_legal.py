"""gen_legal.py [--check] — writes src/gen/legal_table.h: the functions of kir_math.h as steps of kernel programs.

For languages that lack a function, a program is rewritten (src/kir/legal.c): where an instruction stood, the steps of
its function stand. This makes the steps out of the functions' C, so there is one definition: functions are parsed as far
as kir_math.h and legal_math.h go (declarations, assignments, conditional expressions, one early return, loops with a
constant number of turns), with C's rules for the types of expressions.

A step writes the slot of a frame whose number is its place in the function, behind the parameters'. Loops whose bodies
do not use their counter become REPEAT, others are written out. Counts of shifts that are not constant get masked: in
these functions they are in range, or what they yield is thrown away.

--check compares instead of writing, and fails if the file differs.
"""

import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from gen import gen_prelude  # noqa: E402

ROOT = gen_prelude.ROOT
WORDS_MATH = ROOT / "src/kir/legal_math.h"
OUT = ROOT / "src/gen/legal_table.h"

TYPES = {"float": "f32", "double": "f64", "int32_t": "i32", "int": "i32", "int64_t": "i64", "uint32_t": "u32",
         "uint64_t": "u64", "bool": "bool", "uint16_t": "u16", "uint8_t": "bool"}
TYPES |= {f"kir_{t}": t for t in ("f32", "f64", "i32", "i64", "u32", "u64")} | {"kir_b8": "bool"}
RANK = ["bool", "u16", "i32", "u32", "i64", "u64", "f32", "f64"]
MASKS = {"i32": 31, "u32": 31, "i64": 63, "u64": 63}
NAMED = {"INFINITY": ("f32", float("inf")), "NAN": ("f32", float("nan")), "UINT32_MAX": ("u32", 2**32 - 1),
         "INT32_MAX": ("i32", 2**31 - 1), "INT64_MAX": ("i64", 2**63 - 1), "UINT64_MAX": ("u64", 2**64 - 1)}
BUILTINS = {"fabs": "ABS", "sqrt": "SQRT", "fma": "FMA"}

# Tables, and of those that are not erf's how many elements an index without what is added to it can name: a function of
# f32 reaches no further than its exponents.
TABLES = {"kir_two_over_pi": {"kir_trig_far_f32": 4, "kir_trig_far_f64": 31}, "kir_erf_table": {}}

# Functions that others call by number; all else is written out where it is called.
CALLED = [f"kir_{f}_{t}" for f in ("exp", "quarter", "trig_near", "trig_far") for t in ("f32", "f64")]
CALLED += ["kir_words_to_u", "kir_words_width"]

# What instructions become: (operation, operands' type, result's type, function).
ROOTS = [(op, t, t, f"kir_{op.lower()}_{t}") for op in ("EXP", "LOG", "SIN", "COS", "TANH", "ERF")
         for t in ("f32", "f64")]
ROOTS += [(op, t, t, f"kir_{op.lower()}_{t}") for op in ("MIN", "MAX")
          for t in ("f32", "f64", "i32", "i64", "u32", "u64")]
ROOTS += [(op, t, t, f"kir_{op.lower()}_{t}") for op in ("DIV", "MOD", "SHL", "SHR") for t in ("i32", "i64", "u32", "u64")]
ROOTS += [("ABS", t, t, f"kir_abs_{t}") for t in ("i32", "i64", "u32", "u64")]
ROOTS += [("CAST", f, i, f"kir_cast_{f}_{i}") for f in ("f32", "f64") for i in ("i32", "i64", "u32", "u64")]
ROOTS += [(op, t, t, f"kir_legal_mod_{t}") for op in ("MOD",) for t in ("f32", "f64")]
ROOTS += [(op, "bool", "bool", f"kir_legal_{op.lower()}_bool") for op in ("MIN", "MAX", "LT", "LE")]
ROOTS += [("PHILOX", "u64", "u32", "kir_philox_u32")]
# Functions that legal.c name themselves.
NAMED_ROOTS = [f"kir_words_{op}" for op in ("add", "sub", "mul", "shl", "shr_u", "shr_i", "div_u", "signed", "lt_u", "lt_i", "eq",
                                            "from_u", "from_i", "to_u", "to_i")]
NAMED_ROOTS += ["kir_from_f16", "kir_to_f16", "kir_from_bf16", "kir_to_bf16", "kir_narrow_bits"]


class Value:
    """What an expression yields: a slot, or a constant; `flipped`: a bool whose opposite the slot holds; `sum`: the slot and
    the constant that it is the sum of."""

    def __init__(self, type_, slot=None, const=None, flipped=False, sum_=None):
        self.type, self.slot, self.const, self.flipped, self.sum = type_, slot, const, flipped, sum_


class TableAt:
    """A table of constants, from an element on."""

    def __init__(self, name, index):
        self.name, self.index = name, index


def wrap(value, type_):
    bits = 64 if "64" in type_ else 32
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "i" and value >> (bits - 1) else value


class Pool:
    """Constants as 32-bit words, those of 64 bits as two, the low one first."""

    def __init__(self):
        self.words = []

    def place(self, words):
        for at in range(len(self.words) - len(words) + 1):
            if self.words[at:at + len(words)] == words:
                return at
        self.words += words
        return len(self.words) - len(words)

    def add(self, type_, value):
        if type_ == "f32":
            return self.place([struct.unpack("<I", struct.pack("<f", value))[0]])
        bits = struct.unpack("<Q", struct.pack("<d", value))[0] if type_ == "f64" else int(value) & (2**64 - 1)
        return self.place([bits & 0xffffffff, bits >> 32] if "64" in type_ else [bits & 0xffffffff])


TOKEN = re.compile(r"\s*(0x[0-9a-fA-F.]+p[+-]?\d+f?|0x[0-9a-fA-F]+U?|\d+\.\d*(?:e[+-]?\d+)?f?|\d+e[+-]?\d+f?|\d+U?|\w+"
                   r"|<<|>>|<=|>=|==|!=|\+=|-=|\+\+|--|&&|\|\||[-+*/%&|^~!<>=?:;,(){}\[\]])")
LEVELS = [["||"], ["&&"], ["|"], ["^"], ["&"], ["==", "!="], ["<", ">", "<=", ">="], ["<<", ">>"], ["+", "-"], ["*", "/", "%"]]


def tokens_of(text):
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        m = TOKEN.match(text, at)
        if not m:
            raise ValueError(f"no token at: {text[at:at + 40]!r}")
        found.append(m.group(1))
        at = m.end()
    return found


def literal(text):
    if re.match(r"0x[0-9a-fA-F]+U?$|\d+U?$", text):
        value = int(text.rstrip("U"), 0)
        unsigned = text.endswith("U") or (text.startswith("0x") and 2**31 <= value < 2**32)
        if value < (2**32 if unsigned else 2**31):
            return Value("u32" if unsigned else "i32", const=value)
        return Value("u64" if unsigned or value >= 2**63 else "i64", const=value)
    single = text.endswith("f")
    number = text[:-1] if single else text
    value = float.fromhex(number) if "x" in number else float(number)
    return Value("f32", const=struct.unpack("<f", struct.pack("<f", value))[0]) if single else Value("f64", const=value)


class Function:
    """Parses one function and appends its steps."""

    def __init__(self, table, name):
        self.table, self.steps, self.known = table, [], {}
        self.name = name
        head, body = self.split(name)
        every = self.parameters_of(head)
        self.parameters = [p for p in every if not p[2]]
        self.base = len(self.parameters)
        env = {n: Value(t, slot=i) for i, (n, t, _) in enumerate(self.parameters)}
        env |= {n: Value(t) for n, t, pointer in every if pointer}
        result_type = self.result_type(head, name)
        result = self.convert(self.body(tokens_of(body), env), result_type)
        self.result = self.slot(result)
        self.high = self.slot(env[every[-1][0]]) if every[-1][2] else self.result

    def split(self, name):
        text = self.table.texts[name]
        at = text.index("{")
        return text[:at], text[at + 1:text.rindex("}")]

    @staticmethod
    def parameters_of(head):
        found = []
        for p in head[head.index("(") + 1:head.rindex(")")].split(","):
            m = re.match(r"\s*(const )?(\w+) (\*?)(\w+)(\[\d+\])?\s*$", p)
            found.append((m.group(4), TYPES[m.group(2)], bool(m.group(3))))
        return found

    @staticmethod
    def result_type(head, name):
        words = head[:head.index(name)].replace("static", "").replace("inline", "").split()
        return TYPES[words[-1]]

    # -- steps

    def step(self, op, type_, a=0, b=0, c=0, share=True):
        key = (op, type_, a, b, c)
        if share and key in self.known:
            return self.known[key]
        slot = self.base + len(self.steps)
        assert slot < 256, "too many steps"
        self.steps.append(key)
        if share:
            self.known[key] = slot
        return slot

    def slot(self, v):
        """The slot that holds it."""
        if v.const is not None:
            type_ = "i32" if v.type == "u16" else v.type
            at = self.table.pool.add(type_, v.const)
            return self.step("CONST", type_, at & 255, at >> 8)
        if v.flipped:
            return self.step("XOR", "bool", v.slot, self.slot(Value("bool", const=1)))
        return v.slot

    def op(self, op, type_, *operands):
        return Value("bool" if op in ("EQ", "LT", "LE") else type_,
                     slot=self.step(op, "bool" if op in ("EQ", "LT", "LE") else type_, *[self.slot(v) for v in operands]))

    def convert(self, v, type_):
        if v.type == type_:
            return v
        if type_ == "u16":
            v = self.convert(v, "u32")
            return Value("u16", slot=self.slot(self.convert(self.op("AND", "u32", v, Value("u32", const=0xffff)), "i32")))
        if v.type == "u16":
            v = Value("i32", v.slot, v.const)
        if v.type == type_:
            return v
        if v.const is not None and type_ != "bool":
            if type_[0] == "f":
                return Value(type_, const=float(v.const))
            if v.type[0] != "f":
                return Value(type_, const=wrap(int(v.const), type_))
            if v.const == int(v.const):
                return Value(type_, const=int(v.const))
        return self.op("CAST", type_, v)

    @staticmethod
    def promoted(type_):
        return "i32" if type_ in ("bool", "u16") else type_

    def common(self, a, b):
        type_ = max(self.promoted(a.type), self.promoted(b.type), key=RANK.index)
        return self.convert(a, type_), self.convert(b, type_), type_

    # -- expressions

    def binary(self, op, a, b):
        if op in ("&&", "||"):
            return self.op("AND" if op == "&&" else "OR", "bool", self.truth(a), self.truth(b))
        if op in ("<<", ">>"):
            return self.shift(op, a, b)
        if isinstance(a, TableAt):
            return TableAt(a.name, self.binary(op, a.index, b))
        if op in ("==", "!=") and a.type == b.type == "bool":
            return Value("bool", self.op("EQ", "bool", a, b).slot, flipped=op == "!=")
        if op in ("&", "|", "^") and a.type == b.type == "bool":
            return self.op({"&": "AND", "|": "OR", "^": "XOR"}[op], "bool", a, b)
        a, b, type_ = self.common(a, b)
        if a.const is not None and b.const is not None and type_[0] != "f" and op in "+-*&|^":
            value = {"+": a.const + b.const, "-": a.const - b.const, "*": a.const * b.const, "&": a.const & b.const,
                     "|": a.const | b.const, "^": a.const ^ b.const}[op]
            return Value(type_, const=wrap(value, type_))
        if op in ("<", "<="):
            return self.op("LT" if op == "<" else "LE", type_, a, b)
        if op in (">", ">="):
            return self.op("LT" if op == ">" else "LE", type_, b, a)
        if op in ("==", "!="):
            v = self.op("EQ", type_, a, b)
            return Value("bool", v.slot, flipped=op == "!=")
        name = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV", "%": "MOD", "&": "AND", "|": "OR", "^": "XOR"}[op]
        v = self.op(name, type_, a, b)
        if op == "+" and b.const is not None:
            v.sum = (a.slot, b.const)
        return v

    def shift(self, op, a, b):
        type_ = self.promoted(a.type)
        a, b = self.convert(a, type_), self.convert(b, type_)
        if a.const is not None and b.const is not None:
            return Value(type_, const=wrap(a.const << b.const if op == "<<" else a.const >> b.const, type_))
        if b.const is None:
            b = self.op("AND", type_, b, Value(type_, const=MASKS[type_]))
        return self.op("SHL" if op == "<<" else "SHR", type_, a, b)

    def truth(self, v):
        return v if v.type == "bool" else self.convert(self.convert(v, self.promoted(v.type)), "bool")

    def choose(self, cond, a, b):
        cond = self.truth(cond)
        if a.type != b.type:
            a, b, _ = self.common(a, b)
        if cond.const is not None:
            return a if cond.const else b
        if cond.flipped:
            a, b = b, a
        return self.op("SELECT", a.type, Value("bool", cond.slot), a, b)

    def take(self, wanted=None):
        token = self.tokens[self.at]
        if wanted and token != wanted:
            raise ValueError(f"{wanted!r} wanted at {self.tokens[self.at:self.at + 8]}")
        self.at += 1
        return token

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def expression(self, env):
        cond = self.level(0, env)
        if self.peek() != "?":
            return cond
        self.take("?")
        a = self.expression(env)
        self.take(":")
        return self.choose(cond, a, self.expression(env))

    def level(self, n, env):
        if n == len(LEVELS):
            return self.unary(env)
        v = self.level(n + 1, env)
        while self.peek() in LEVELS[n]:
            op = self.take()
            v = self.binary(op, v, self.level(n + 1, env))
        return v

    def unary(self, env):
        token = self.peek()
        if token == "-":
            self.take()
            v = self.unary(env)
            v = self.convert(v, self.promoted(v.type))
            return Value(v.type, const=-v.const) if v.const is not None else self.op("NEG", v.type, v)
        if token == "~":
            self.take()
            v = self.unary(env)
            return self.binary("^", v, Value(v.type, const=wrap(-1, v.type)))
        if token == "!":
            self.take()
            v = self.truth(self.unary(env))
            return Value("bool", v.slot, flipped=not v.flipped)
        if token == "(" and self.peek(1) in TYPES and self.peek(2) == ")":
            self.at += 3
            type_ = TYPES[self.tokens[self.at - 2]]
            return self.convert(self.unary(env), type_)
        return self.primary(env)

    def primary(self, env):
        token = self.take()
        if token == "(":
            v = self.expression(env)
            self.take(")")
            return v
        if self.peek() == "(":
            return self.call(token, env)
        if self.peek() == "[":
            return self.element(token, env)
        if token in env:
            return env[token]
        if token in TABLES:
            return TableAt(token, Value("i32", const=0))
        if token in NAMED:
            return Value(NAMED[token][0], const=NAMED[token][1])
        return literal(token)

    def element(self, name, env):
        places = []
        while self.peek() == "[":
            self.take()
            places.append(self.convert(self.expression(env), "i32"))
            self.take("]")
        of = env.get(name)
        if isinstance(of, list):
            return self.pick(of, places[0])
        if len(places) == 2:
            return Value("f64", slot=self.step("LOOKUP", "f64", self.slot(places[1]), places[0].const))
        if of:
            name, places[0] = of.name, self.binary("+", of.index, places[0])
        slot, beyond = places[0].sum or (self.slot(places[0]), 0)
        return Value("u32", slot=self.step("LOOKUP", "u32", slot, TABLES[name][self.name], beyond))

    def pick(self, array, index):
        """An element of a local array, which is laid into slots side by side if its number is not known."""
        if index.const is not None:
            return array[index.const]
        values = [self.slot(v) for v in array]
        key = ("side by side", *values)
        if key not in self.known:
            self.known[key] = [self.step("COPY", array[0].type, v, share=False) for v in values][0]
        slot, beyond = index.sum or (self.slot(index), 0)
        first = self.known[key] + beyond
        return Value(array[0].type, slot=self.step("PICK", array[0].type, slot, first, len(array) - beyond))

    def arguments(self, env):
        """Values, and names of variables whose addresses are given."""
        found = []
        self.take("(")
        while self.peek() != ")":
            if self.peek() == "&":
                self.take()
                found.append(self.take())
            else:
                found.append(self.expression(env))
            if self.peek() == ",":
                self.take()
        self.take(")")
        return found

    def call(self, name, env):
        values = self.arguments(env)
        builtin = re.match(r"__builtin_(\w+?)f?$", name)
        bits = re.match(r"kir_(from_)?bits_(f32|f64)$", name)
        if bits:
            wide = "u64" if bits.group(2) == "f64" else "u32"
            to, of = (bits.group(2), wide) if bits.group(1) else (wide, bits.group(2))
            return self.op("BITCAST", to, self.convert(values[0], of))
        if builtin:
            return self.builtin(name, builtin.group(1), values)
        if name in CALLED:
            return self.call_step(name, values)
        return self.inline(name, values, env)

    def builtin(self, name, word, values):
        type_ = "f32" if name.endswith("f") else "f64"
        values = [self.convert(v, type_) for v in values]
        if word == "copysign":
            return self.copysign(type_, *values)
        return self.op(BUILTINS[word], type_, *values)

    def copysign(self, type_, magnitude, sign):
        u = "u32" if type_ == "f32" else "u64"
        top = 1 << (31 if u == "u32" else 63)
        y = self.op("AND", u, self.op("BITCAST", u, magnitude), Value(u, const=top - 1))
        s = self.op("AND", u, self.op("BITCAST", u, sign), Value(u, const=top))
        return self.op("BITCAST", type_, self.op("OR", u, y, s))

    def call_step(self, name, values):
        f = self.table.function(name)
        row = self.table.number(name)
        slots = [self.slot(self.convert(v, t)) for v, (_, t, _) in zip(values, f.parameters)]
        type_ = self.result_type(self.split(name)[0], name)
        return Value(type_, slot=self.step("CALL", type_, row, *slots))

    def inline(self, name, values, env):
        head, body = self.split(name)
        inner, outs = {}, {}
        for v, (parameter, type_, pointer) in zip(values, self.parameters_of(head)):
            if isinstance(v, (list, TableAt)):
                inner[parameter] = v
            elif pointer:
                outs[parameter] = v
                inner[parameter] = Value(type_)
            else:
                inner[parameter] = self.convert(v, type_)
        saved = self.tokens, self.at
        result = self.body(tokens_of(body), inner)
        if result:
            result = self.convert(result, self.result_type(head, name))
        self.tokens, self.at = saved
        for parameter, variable in outs.items():
            env[variable] = inner[parameter]
        return result

    # -- statements

    def body(self, tokens, env):
        self.tokens, self.at = tokens, 0
        return self.statements(env)

    def statements(self, env):
        while self.at < len(self.tokens):
            token = self.peek()
            if token == "return":
                self.take()
                v = self.expression(env)
                self.take(";")
                return v
            if token == "if" and self.is_early_return():
                return self.early_return(env)
            self.statement(env)
        return None

    def is_early_return(self):
        at, depth = self.at + 1, 0
        while True:
            depth += (self.tokens[at] == "(") - (self.tokens[at] == ")")
            at += 1
            if depth == 0:
                return self.tokens[at] == "return"

    def conditional(self, env):
        """if (…) with assignments in it: variables are chosen behind it."""
        self.take("if")
        self.take("(")
        cond = self.truth(self.expression(env))
        self.take(")")
        inner, stop = dict(env), self.statement_end()
        self.block(inner, {}, stop)
        self.at = stop
        for name in env:
            if inner[name] is not env[name]:
                env[name] = self.choose(cond, inner[name], env[name])

    def early_return(self, env):
        self.take("if")
        self.take("(")
        cond = self.truth(self.expression(env))
        self.take(")")
        self.take("return")
        early = self.expression(env)
        self.take(";")
        return self.choose(cond, early, self.statements(env))

    def statement(self, env):
        token = self.peek()
        if token == "for":
            self.loop(env)
        elif token == "if":
            self.conditional(env)
        elif token in TYPES:
            self.declaration(env)
        elif self.peek(1) == "(":
            self.expression(env)
            self.take(";")
        elif token == "*":
            self.take()
            self.assignment(env)
        else:
            self.assignment(env)

    def declaration(self, env):
        type_ = TYPES[self.take()]
        while True:
            name = self.take()
            env[name] = Value(type_)
            if self.peek() == "[":
                env[name] = [Value(type_)] * int(self.tokens[self.at + 1])
                self.at += 3
            if self.peek() == "=":
                self.take()
                v = self.convert(self.expression(env), type_)
                env[name] = v
            if self.take() == ";":
                return

    def assignment(self, env):
        name, op = self.take(), self.take()
        if op == "[":
            place = self.expression(env).const
            self.take("]")
            self.take("=")
            env[name][place] = self.convert(self.expression(env), env[name][place].type)
            self.take(";")
            return
        v = Value("i32", const=1) if op == "++" else self.expression(env)
        op = "+=" if op == "++" else op
        if op in ("+=", "-="):
            v = self.binary(op[0], env[name], v)
        env[name] = self.convert(v, env[name].type)
        self.take(";")

    def loop(self, env):
        """for (int k = first; k </>= end; k++/k--) body"""
        self.take("for")
        self.take("(")
        self.take("int")
        counter = self.take()
        self.take("=")
        first = self.expression({}).const
        self.take(";")
        self.take(counter)
        compare = self.take()
        end = self.expression({}).const
        self.take(";")
        self.take(counter)
        self.take()
        self.take(")")
        turns = list(range(first, end) if compare == "<" else range(first, end - 1, -1))
        start = self.at
        stop = self.statement_end()
        if counter in self.tokens[start:stop]:
            for k in turns:
                self.at = start
                self.block({**env, counter: Value("i32", const=k)}, env, stop)
        else:
            self.repeat(env, start, stop, len(turns))
        self.at = stop

    def statement_end(self):
        at, depth = self.at, 0
        while True:
            depth += (self.tokens[at] == "{") - (self.tokens[at] == "}")
            at += 1
            if depth == 0 and self.tokens[at - 1] in (";", "}"):
                return at

    def block(self, inner, env, stop):
        if self.peek() == "{":
            self.take()
            stop -= 1
        while self.at < stop:
            self.statement(inner)
        for name in env:
            env[name] = inner[name]

    def repeat(self, env, start, stop, turns):
        body = self.tokens[start:stop]
        carried = sorted({body[i] for i in range(len(body) - 1) if body[i] in env and body[i + 1] in ("=", "+=", "-=")})
        for name in carried:
            v = env[name]
            env[name] = Value(v.type, slot=self.step("COPY", v.type, self.slot(v), share=False))
        begin, slots = len(self.steps), [env[name].slot for name in carried]
        known = dict(self.known)
        inner = dict(env)
        self.block(inner, dict(env), stop)
        ends = [self.slot(inner[name]) for name in carried]
        assert not set(ends) & set(slots), "a variable that becomes another"
        for slot, value in zip(slots, ends):
            self.step("MOVE", "f32", slot, value, share=False)
        self.step("REPEAT", "f32", len(self.steps) - begin, turns - 1, share=False)
        self.known = known  # what the body computes changes from turn to turn


class Table:
    def __init__(self, texts):
        self.texts, self.pool, self.functions, self.names = texts, Pool(), {}, []

    def function(self, name):
        if name not in self.functions:
            f = Function(self, name)
            self.functions[name] = f
            self.names.append(name)
        return self.functions[name]

    def number(self, name):
        return self.names.index(name)


def all_texts():
    texts = gen_prelude.all_functions()
    if WORDS_MATH.is_file():
        macros, text = gen_prelude.read_macros(gen_prelude.without_comments(WORDS_MATH.read_text(encoding="utf-8")))
        texts |= gen_prelude.functions_of(gen_prelude.expand_calls(text, macros))
    return texts


def wrapped(items, per_line):
    return "".join("    " + " ".join(f"{i}," for i in items[k:k + per_line]) + "\n" for k in range(0, len(items), per_line))


def label(name):
    return "LEGAL_" + name.removeprefix("kir_").removeprefix("legal_").upper()


SPECIAL = ["CALL", "LOOKUP", "PICK", "COPY", "MOVE", "REPEAT"]


def generate():
    table = Table(all_texts())
    for _, _, _, name in ROOTS:
        table.function(name)
    for name in NAMED_ROOTS:
        table.function(name)
    steps, rows, kinds = [], [], {}
    for name in table.names:
        f = table.functions[name]
        rows.append(f"{{{len(steps)}, {len(f.steps)}, {f.base}, {f.result}, {f.high}}}")
        for op, type_, a, b, c in f.steps:
            op = f"LEGAL_{op}" if op in SPECIAL else f"KIR_{op}"
            kind = f"{{{op}, KIR_{'I32' if type_ == 'u16' else type_.upper()}}}"
            kinds.setdefault(kind, len(kinds))
            steps.append(f"{{{kinds[kind]}, {a}, {b}, {c}}}")
    assert len(table.names) < 256 and len(kinds) < 256 and len(table.pool.words) < 65536
    out = """/* legal_table.h — the functions of kir_math.h and legal_math.h as steps. Generated by tools/gen/gen_legal.py; do not edit.
 *
 * A step writes the slot behind the parameters' that has its number in the function. CONST: the word LEGAL_WORDS[a + 256 b],
 * of 64-bit types the next one too, above it. CALL: function a of b, c. LOOKUP: element a + c of 2/pi, a below b; as f64, element a
 * of row b of erf's table. PICK: the slot b + a, a below c. COPY: a; MOVE: slot a becomes b; REPEAT: the a steps before it b times more. */
"""
    out += "enum { " + ", ".join(f"LEGAL_{w}" + (" = KIR_OP_COUNT" if i == 0 else "") for i, w in enumerate(SPECIAL))
    out += " };\n\nenum {\n" + "".join(f"    {label(n)},\n" for n in table.names) + "};\n\n"
    out += "#ifdef LEGAL_TABLES\n\nstatic const struct legal_kind {\n    uint8_t op, type;\n} LEGAL_KINDS[] = {\n"
    out += wrapped(list(kinds), 5) + "};\n\n"
    out += "static const struct legal_step {\n    uint8_t kind, a, b, c;\n} LEGAL_STEPS[] = {\n" + wrapped(steps, 7) + "};\n\n"
    out += "static const struct legal_function {\n    uint16_t first;\n    uint8_t steps, parameters, result, high; /* high: what its pointer gets */\n"
    out += "} LEGAL_FUNCTIONS[] = {\n" + wrapped(rows, 6) + "};\n\n"
    out += "static const uint32_t LEGAL_WORDS[] = {\n" + wrapped([f"0x{w:x}" for w in table.pool.words], 10) + "};\n\n"
    out += "/* What an instruction becomes. */\nstatic const struct legal_row {\n    uint8_t op, operand, type, function;\n"
    out += "} LEGAL_ROWS[] = {\n"
    out += wrapped([f"{{KIR_{op}, KIR_{f.upper()}, KIR_{t.upper()}, {label(n)}}}" for op, f, t, n in ROOTS], 2)
    return out + "};\n\n#endif\n"


def main():
    new = generate()
    if "--check" in sys.argv[1:]:
        same = OUT.is_file() and OUT.read_text(encoding="utf-8") == new
        if not same:
            print(f"{OUT.relative_to(ROOT)} differs from what the headers say")
        return int(not same)
    OUT.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    sys.exit(main())
