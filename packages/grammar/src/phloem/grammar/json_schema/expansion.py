"""Expands formulas into forms: what atoms, negations and combinations mean as sets of values."""

from __future__ import annotations

from functools import reduce
from typing import Any

from phloem.grammar.constraint import Formats
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import GrammarError, UnsupportedConstraint
from phloem.grammar.json_schema import facts
from phloem.grammar.json_schema.algebra import Algebra, is_nothing
from phloem.grammar.json_schema.document import Document, Location
from phloem.grammar.json_schema.draft import ANNOTATIONS, Draft, check_keywords, ref_hides_siblings
from phloem.grammar.json_schema.formula import FALSE, TRUE, Constant, Formula, Formulas
from phloem.grammar.json_schema.numbers import Numbers
from phloem.grammar.json_schema.reader import Reader
from phloem.grammar.json_schema.strings import Strings, StringTerm, language, texts_of
from phloem.grammar.json_schema.terms import ArrayTerm, Form, ObjectTerm
from phloem.grammar.json_schema.values import Number, escape, is_number, key_of, shown

_LOOK_AHEAD = 6
"""How many levels of children are looked into to find a term void early."""


class _Endless(GrammarError):
    """A formula whose expansion needs itself."""


class Expansion:
    """The forms of one document's formulas. It is the `Judge` of their algebra."""

    def __init__(
        self, document: Document, formats: Formats, numbers: Numbers, budget: Budget
    ) -> None:
        self.document = document
        self.formulas = Formulas()
        self.budget = budget
        self.algebra = Algebra(self, numbers)
        self._reader = Reader(
            document, numbers, self, formats, self._formula, lambda each: self.expand(each).strings
        )
        self._locations: dict[Formula, Location] = {}
        self._values: dict[Formula, Any] = {}
        self._forms: dict[Formula, Form] = {}
        self._open: set[Formula] = set()
        self._void: dict[Formula, bool] = {FALSE: True, TRUE: False}
        self._depth = 0
        self.root = self._formula(document.at(""))

    def expand(self, formula: Formula) -> Form:
        """All values that meet a formula.

        Raises:
            GrammarError: if the schemas are malformed, or one refers to itself in place.
            UnsupportedConstraint: naming the place.
            ConstraintTooComplex: if it grows over a limit.
        """
        form = self._forms.get(formula)
        if form is not None:
            return form
        if formula in self._open:
            raise _Endless(
                "a schema refers to itself without a property or an item between, so that nothing "
                "could be decided: remove that '$ref'"
            )
        self.budget.check(len(self._forms))
        self._open.add(formula)
        try:
            form = self._forms[formula] = self._expand(formula)
        finally:
            self._open.remove(formula)
        return form

    def is_void(self, formula: Formula) -> bool:
        """See `Judge`: looks a few levels into children, and gives up where it would not end."""
        known = self._void.get(formula)
        if known is not None:
            return known
        if self._depth >= _LOOK_AHEAD:
            return False
        self._depth += 1
        try:
            void = is_nothing(self.expand(formula))
        except (_Endless, UnsupportedConstraint):
            return False
        finally:
            self._depth -= 1
        self._void[formula] = void
        return void

    def void_place(self) -> str | None:
        """The pointer of a schema that is void, one deep inside if there are several.

        None where no single one is, as in an endless recursion.
        """
        places = [
            location.pointer
            for formula, location in self._locations.items()
            if self._void.get(formula)
        ]
        return max(places, key=lambda pointer: pointer.count("/"), default=None)

    def few_values(self, formula: Formula, limit: int) -> tuple[Formula, ...] | None:
        """See `Judge`: knows the values of null, booleans and strings."""
        form = self.expand(formula)
        texts = texts_of(language(form.strings, self.budget), limit)
        if form.arrays or form.objects or not form.numbers.is_empty or texts is None:
            return None
        values: list[Any] = [None] if form.null else []
        values += [*sorted(form.booleans), *(text.decode() for text in texts)]
        return tuple(map(self._value, values)) if len(values) <= limit else None

    def _expand(self, formula: Formula) -> Form:
        parts = self.formulas.parts(formula)
        algebra = self.algebra
        if parts.operator == "atom":
            if formula in self._values:
                return self._values_form([self._values[formula]])
            return self._schema_form(self._locations[formula])
        if parts.operator == "not":
            return algebra.minus(algebra.everything, self.expand(parts.operands[0]))
        if parts.operator == "or":
            return algebra.join(*map(self.expand, parts.operands))
        negated = [each for each in parts.operands if self.formulas.parts(each).operator == "not"]
        plain = [self.expand(each) for each in parts.operands if each not in negated]
        inner = [self.expand(self.formulas.negation(each)) for each in negated]
        return reduce(algebra.minus, inner, reduce(algebra.meet, plain, algebra.everything))

    def _formula(self, location: Location) -> Formula:
        location = self._target(location)
        schema = location.schema
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if schema == {}:
            return TRUE
        if self._is_constant(schema):
            return self._value(schema["const"])
        formula = self.formulas.atom(location.key)
        self._locations.setdefault(formula, location)
        return formula

    def _is_constant(self, schema: Any) -> bool:
        if not isinstance(schema, dict) or self.document.draft is Draft.D4:
            return False
        return schema.keys() - ANNOTATIONS == {"const"}

    def _target(self, location: Location) -> Location:
        """Where references lead that stand for the whole of their schema."""
        seen = set()
        while isinstance(location.schema, dict) and "$ref" in location.schema:
            if location.pointer in seen:
                raise _Endless(f"the '$ref' at {location.pointer or 'the root'} leads to itself")
            seen.add(location.pointer)
            if not self._hides(location):
                break
            location = self.document.resolve(location.schema["$ref"], location)
        return location

    def _hides(self, location: Location) -> bool:
        document = self.document
        return ref_hides_siblings(
            location.schema, document.schema, document.draft, location.pointer
        )

    def _schema_form(self, location: Location) -> Form:
        """The form of a schema that is an object, with what it applies in place."""
        schema, algebra = location.schema, self.algebra
        if not isinstance(schema, dict):
            place = location.pointer or "the root"
            raise GrammarError(
                f"{shown(schema)} at {place} is not a schema: use an object or a boolean"
            )
        check_keywords(schema, location.pointer, self.document.draft)
        form = self._reader.read(location)
        if "const" in schema:
            form = algebra.meet(form, self._values_form([schema["const"]]))
        if "enum" in schema:
            if not isinstance(schema["enum"], list):
                raise facts.malformed(location, "enum", "a list")
            form = algebra.meet(form, self._values_form(schema["enum"]))
        if "$ref" in schema:
            target = self.document.resolve(schema["$ref"], location)
            form = algebra.meet(form, self.expand(self._formula(target)))
        for each in self._applied(location, "allOf"):
            form = algebra.meet(form, each)
        for keyword, combine in (("anyOf", self._any_of), ("oneOf", self._one_of)):
            if keyword in schema:
                form = combine(form, self._applied(location, keyword))
        if "not" in schema:
            form = algebra.minus(form, self._form_at(location, "not"))
        return self._dependencies(self._condition(form, location), location)

    def _any_of(self, form: Form, options: list[Form]) -> Form:
        return self.algebra.join(*(self.algebra.meet(form, each) for each in options))

    def _one_of(self, form: Form, options: list[Form]) -> Form:
        options = [self.algebra.meet(form, each) for each in options]
        exclusive = []
        for number, option in enumerate(options):
            others = options[:number] + options[number + 1 :]
            exclusive.append(reduce(self.algebra.minus, others, option))
        return self.algebra.join(*exclusive)

    def _condition(self, form: Form, location: Location) -> Form:
        schema, algebra = location.schema, self.algebra
        if "if" not in schema or ("then" not in schema and "else" not in schema):
            return form
        condition = self._form_at(location, "if")
        met, unmet = algebra.meet(form, condition), algebra.minus(form, condition)
        if "then" in schema:
            met = algebra.meet(met, self._form_at(location, "then"))
        if "else" in schema:
            unmet = algebra.meet(unmet, self._form_at(location, "else"))
        return algebra.join(met, unmet)

    def _dependencies(self, form: Form, location: Location) -> Form:
        """`dependencies` and its two successors: what a property's presence asks for."""
        algebra = self.algebra
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, value in facts.mapping(location, keyword).items():
                needs_names = isinstance(value, list) and keyword != "dependentSchemas"
                if needs_names and all(isinstance(each, str) for each in value):
                    names = frozenset(value) | {name}
                    consequence = self._objects(ObjectTerm(required=names))
                elif keyword == "dependentRequired" or isinstance(value, list):
                    raise facts.malformed(location, keyword, "made of lists of names, or schemas")
                else:
                    present = self._objects(ObjectTerm(required=frozenset([name])))
                    schema = self._form_at(location, keyword, name)
                    consequence = algebra.meet(present, schema)
                # Where the name is not there, or the value no object, anything goes.
                absent = self._objects(ObjectTerm({name: FALSE}))
                rest = algebra.minus(algebra.everything, self._objects(ObjectTerm()))
                allowed = algebra.join(rest, absent, consequence)
                form = algebra.meet(form, allowed)
        return form

    def _objects(self, term: ObjectTerm) -> Form:
        form = self.algebra.nothing
        return Form(form.null, form.booleans, form.numbers, form.strings, form.arrays, (term,))

    def _applied(self, location: Location, keyword: str) -> list[Form]:
        if keyword not in location.schema:
            return []
        value = location.schema[keyword]
        if not isinstance(value, list) or not value:
            raise facts.malformed(location, keyword, "a list of one schema or more")
        return [self._form_at(location, keyword, str(place)) for place in range(len(value))]

    def _form_at(self, location: Location, *tokens: str) -> Form:
        pointer = location.pointer + "".join(f"/{escape(token)}" for token in tokens)
        if not self.document.has(pointer):
            raise facts.malformed(location, tokens[0], "made of schemas (objects or booleans)")
        return self.expand(self._formula(self.document.at(pointer)))

    def _values_form(self, values: list[Any]) -> Form:
        """Exactly some values."""
        self.algebra.check_terms(sum(isinstance(each, (list, dict)) for each in values))
        texts = [each.encode() for each in values if isinstance(each, str)]
        numbers = dict.fromkeys(Number.of(each) for each in values if is_number(each))
        strings: Strings = ()
        if texts:
            strings = (StringTerm(Dfa.of_literals(texts, self.budget)),)
        return Form(
            None in values,
            frozenset(each for each in values if isinstance(each, bool)),
            self.algebra.numbers.any_of(numbers),
            strings,
            tuple(self._array(each) for each in values if isinstance(each, list)),
            tuple(self._object(each) for each in values if isinstance(each, dict)),
        )

    def _array(self, items: list[Any]) -> ArrayTerm:
        formulas = tuple(map(self._value, items))
        return ArrayTerm(formulas, FALSE, len(items), len(items))

    def _object(self, members: dict[str, Any]) -> ObjectTerm:
        formulas = {name: self._value(each) for name, each in members.items()}
        return ObjectTerm(formulas, frozenset(members), (), len(members), len(members))

    def _value(self, value: Any) -> Formula:
        formula = self.formulas.atom(Constant(key_of(value)))
        self._values.setdefault(formula, value)
        return formula
