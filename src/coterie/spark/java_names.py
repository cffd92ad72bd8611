"""A view of the JVM that looks up each existing Java name once.

At each use of a dotted name py4j asks the JVM, for each prefix of the name, whether the prefix is a package or a class:
"jvm.java.util.Map" takes three requests. For a package, the JVM searches all jars of the class path once for
each import of PySpark, which takes milliseconds of CPU time. PySpark uses dotted names, too: about 25 for each
exception of Java that it converts.
"""

from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView


class _JavaNameCacheMixin:
    """Mixin of a class of py4j whose attributes are classes and packages of Java: keeps each one that was found."""

    def __init__(self, original: JVMView | JavaPackage) -> None:
        """``original``: the object of py4j whose fields this object has."""
        self.__dict__.update(vars(original))
        self._found_by_name: dict[str, JavaClass | JavaPackage] = {}

    def __getattr__(self, name: str) -> Any:
        """The class or package ``name``. Called when the object itself has no attribute ``name``.

        py4j describes a name that is neither a class nor a package as a package. A "package" whose last part begins
        with a capital letter is an absent class by Java's convention, and one that was named with dots may be absent
        too. Neither is kept, because the class can be added to the JVM later.

        :raises Py4JError: when the JVM does not respond.
        """
        if (kept := self._found_by_name.get(name)) is not None:
            return kept
        found = super().__getattr__(name)  # type: ignore[misc] # of py4j's class
        if isinstance(found, JavaClass):
            return self._found_by_name.setdefault(name, found)
        if isinstance(found, JavaPackage) and "." not in name and not name[:1].isupper():
            return self._found_by_name.setdefault(name, _CachingJavaPackage(found))
        return found


class _CachingJavaPackage(_JavaNameCacheMixin, JavaPackage):  # type: ignore[misc] # py4j has no types
    """A package whose classes and packages are looked up once."""


# PySpark recognizes an absent class by the message "'JavaPackage' object is not callable".
_CachingJavaPackage.__name__ = JavaPackage.__name__


class CachingJvmView(_JavaNameCacheMixin, JVMView):  # type: ignore[misc] # py4j has no types
    """A view of the JVM whose classes and packages are looked up once. All threads use the same view."""
