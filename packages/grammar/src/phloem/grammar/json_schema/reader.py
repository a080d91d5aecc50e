"""From the keywords of one subschema to a form, except those that apply other schemas in place.

Children (items, properties) become formulas, which nobody looks into here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phloem.grammar.constraint import Formats
from phloem.grammar.dfa import Budget, Dfa
from phloem.grammar.errors import UnsupportedConstraint
from phloem.grammar.json_schema import facts, strings
from phloem.grammar.json_schema.arrays import settle as settle_array
from phloem.grammar.json_schema.comparison import Bound
from phloem.grammar.json_schema.document import Document, Location
from phloem.grammar.json_schema.draft import Draft
from phloem.grammar.json_schema.formats import INTEGER_FORMATS, check_format, format_language
from phloem.grammar.json_schema.formula import FALSE, TRUE, Formula
from phloem.grammar.json_schema.judge import Judge
from phloem.grammar.json_schema.numbers import Numbers
from phloem.grammar.json_schema.objects import partition
from phloem.grammar.json_schema.objects import settle as settle_object
from phloem.grammar.json_schema.patterns import containing
from phloem.grammar.json_schema.strings import Strings
from phloem.grammar.json_schema.terms import ArrayTerm, Form, ItemDemand, NameClass, ObjectTerm
from phloem.grammar.json_schema.values import Number, escape

_TYPES = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])


@dataclass(frozen=True)
class Reader:
    """Reads the subschemas of one document."""

    document: Document
    numbers: Numbers
    judge: Judge
    formats: Formats
    formula: Callable[[Location], Formula]
    """The formula of a subschema."""
    strings_of: Callable[[Formula], Strings]
    """The strings that meet a formula, at once."""

    @property
    def _budget(self) -> Budget:
        return self.judge.budget

    def read(self, location: Location) -> Form:
        """All values that the keywords of one place allow.

        Raises:
            GrammarError, UnsupportedConstraint: naming the place.
        """
        types = self._types(location)
        self._format(location)
        array = self._array(location) if "array" in types else None
        record = self._object(location) if "object" in types else None
        return Form(
            "null" in types,
            frozenset([False, True]) if "boolean" in types else frozenset(),
            self._number(location, types),
            self._string(location) if "string" in types else (),
            () if array is None else (array,),
            () if record is None else (record,),
        )

    def _child(self, location: Location, keyword: str, *token: str | int) -> Formula:
        place = "".join(f"/{escape(str(each))}" for each in (keyword, *token))
        pointer = location.pointer + place
        if not self.document.has(pointer):
            raise facts.malformed(location, keyword, "made of schemas (objects or booleans)")
        return self.formula(self.document.at(pointer))

    def _types(self, location: Location) -> frozenset[str]:
        if "type" not in location.schema:
            return _TYPES
        value = location.schema["type"]
        types = [value] if isinstance(value, str) else value
        if (
            not isinstance(types, list)
            or not types
            or not all(isinstance(each, str) and each in _TYPES for each in types)
        ):
            raise facts.malformed(location, "type", f"one or some of {', '.join(sorted(_TYPES))}")
        return frozenset(types)

    def _number(self, location: Location, types: frozenset[str]) -> Dfa:
        if types.isdisjoint(("integer", "number")):
            return Dfa.empty()
        bounds = self._bounds(location)
        limits = INTEGER_FORMATS.get(self._format(location))
        whole = "number" not in types or limits is not None
        if limits is not None:
            smallest, largest = map(Number.of, limits)
            bounds += [Bound(smallest, (0, 1)), Bound(largest, (-1, 0))]
        result = self.numbers.within(bounds, whole=whole)
        multiple = facts.number(location, "multipleOf")
        if multiple is not None:
            if multiple.negative or not multiple.digits:
                raise facts.malformed(location, "multipleOf", "a number above 0")
            multiples = self.numbers.multiples(
                multiple, of_integers=whole, pointer=location.pointer
            )
            result = result.intersect(multiples, self._budget)
        return result

    def _format(self, location: Location) -> str:
        """The name of a format to be asserted; empty where there is none."""
        name = facts.text(location, "format") if self.formats == "assert" else None
        if name is not None:
            check_format(name, location.pointer)
        return name or ""

    def _bounds(self, location: Location) -> list[Bound]:
        """The bounds of numbers, in the spelling of any draft."""
        found: list[Bound] = []
        for side, keyword, exclusive in (
            (1, "minimum", "exclusiveMinimum"),
            (-1, "maximum", "exclusiveMaximum"),
        ):
            bound = facts.number(location, keyword)
            # Until draft 4, the exclusive bound was a flag of the other one.
            as_flag = isinstance(location.schema.get(exclusive), bool)
            if as_flag and self.document.draft not in (Draft.ANY, Draft.D4):
                raise facts.malformed(location, exclusive, "a number, since draft 6")
            if bound is not None:
                strict = as_flag and location.schema[exclusive]
                found.append(Bound(bound, (side,) if strict else (0, side)))
            limit = None if as_flag else facts.number(location, exclusive)
            if limit is not None:
                if self.document.draft is Draft.D4:
                    raise facts.malformed(location, exclusive, "true or false in draft 4")
                found.append(Bound(limit, (side,)))
        return found

    def _string(self, location: Location) -> Strings:
        languages = []
        pattern = facts.text(location, "pattern")
        if pattern is not None:
            languages.append(containing(pattern, location.pointer, "pattern", self._budget))
        asserted = format_language(self._format(location))
        if asserted is not None:
            languages.append(asserted)
        fewest, most = facts.count(location, "minLength"), facts.count(location, "maxLength")
        return strings.constrained(fewest or 0, most, languages, self._budget)

    def _array(self, location: Location) -> ArrayTerm | None:
        prefix, rest = self._items(location)
        demands: tuple[ItemDemand, ...] = ()
        if "contains" in location.schema:
            fewest = facts.count(location, "minContains")
            if fewest is not None and fewest > 1:
                raise UnsupportedConstraint(
                    location.pointer, "minContains", "items are not counted: use 0 or 1"
                )
            if "maxContains" in location.schema:
                raise UnsupportedConstraint(
                    location.pointer, "maxContains", "items are not counted: remove it"
                )
            if fewest != 0:
                demands = (ItemDemand(0, self._child(location, "contains")),)
        term = ArrayTerm(
            prefix,
            rest,
            facts.count(location, "minItems") or 0,
            facts.count(location, "maxItems"),
            demands,
            location.pointer if facts.flag(location, "uniqueItems") else None,
        )
        return settle_array(self.judge, term)

    def _items(self, location: Location) -> tuple[tuple[Formula, ...], Formula]:
        """The formulas of the first places, and of the rest, in the spelling of any draft."""
        schema = location.schema
        if isinstance(schema.get("items"), list):
            if self.document.draft is Draft.D2020 or "prefixItems" in schema:
                raise facts.malformed(location, "items", "one schema, beside 'prefixItems'")
            keyword, beyond = "items", "additionalItems"
        else:
            keyword, beyond = "prefixItems", "items"
            if keyword in schema and "additionalItems" in schema:
                raise UnsupportedConstraint(
                    location.pointer,
                    "additionalItems",
                    "beside 'prefixItems' no draft knows it: use 'items' for the places behind",
                )
        places = schema.get(keyword, [])
        if not isinstance(places, list):
            raise facts.malformed(location, keyword, "a list of schemas")
        prefix = tuple(self._child(location, keyword, place) for place in range(len(places)))
        return prefix, self._child(location, beyond) if beyond in schema else TRUE

    def _object(self, location: Location) -> ObjectTerm | None:
        properties = {
            name: self._child(location, "properties", name)
            for name in facts.mapping(location, "properties")
        }
        patterns = [
            (
                containing(pattern, f"{location.pointer}", "patternProperties", self._budget),
                self._child(location, "patternProperties", pattern),
            )
            for pattern in facts.mapping(location, "patternProperties")
        ]
        both = self.judge.formulas.all_of
        for name in properties:
            for names, formula in patterns:
                if names.accepts(name.encode()):
                    properties[name] = both(properties[name], formula)
        beyond = TRUE
        if "additionalProperties" in location.schema:
            beyond = self._child(location, "additionalProperties")
        classes = partition(self.judge, patterns, beyond)
        if "propertyNames" in location.schema:
            formula = self._child(location, "propertyNames")
            legal = strings.language(self.strings_of(formula), self._budget)
            for name in properties:
                if not legal.accepts(name.encode()):
                    properties[name] = FALSE
            inside = [(each.names.intersect(legal, self._budget), each) for each in classes]
            classes = tuple(
                NameClass(names, each.formula) for names, each in inside if not names.is_empty
            )
        term = ObjectTerm(
            properties,
            frozenset(facts.names(location, "required")),
            classes,
            facts.count(location, "minProperties") or 0,
            facts.count(location, "maxProperties"),
        )
        return settle_object(self.judge, term)
