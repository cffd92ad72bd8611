"""A view of the JVM that looks up each Java name once.

At each use of a dotted name py4j asks the JVM, for each prefix of the name, whether the prefix is a package or a class:
the name jvm.java.util.Map takes three requests. For a package, the JVM searches all jars of the class path once for
each import of PySpark, which takes milliseconds of CPU time. PySpark uses dotted names, too: about 25 for each
exception of Java that it converts.
"""

from typing import Any

from py4j.java_gateway import JavaClass, JavaPackage, JVMView


class CachingJvmView(JVMView):  # type: ignore[misc] # py4j has no types
    """A :class:`JVMView` that keeps each class and package that was found in the JVM. All threads use the same view."""

    def __init__(self, view: JVMView) -> None:
        """``view``: the view of the gateway, in which PySpark has imported its packages."""
        self.__dict__.update(vars(view))
        self._found_by_name: dict[str, JavaClass | JavaPackage] = {}

    def __getattr__(self, name: str) -> Any:
        found = self._found_by_name.get(name)
        return _keep(self._found_by_name, name, super().__getattr__(name)) if found is None else found


class _CachingJavaPackage(JavaPackage):  # type: ignore[misc] # py4j has no types
    """A :class:`JavaPackage` that keeps each class and package that was found in it."""

    def __init__(self, package: JavaPackage) -> None:
        self.__dict__.update(vars(package))
        self._found_by_name: dict[str, JavaClass | JavaPackage] = {}

    def __getattr__(self, name: str) -> Any:
        found = self._found_by_name.get(name)
        return _keep(self._found_by_name, name, super().__getattr__(name)) if found is None else found


def _keep(found_by_name: dict[str, JavaClass | JavaPackage], name: str, found: Any) -> Any:
    """Return ``found``, py4j's object for ``name``, after it was added to ``found_by_name``; a package as a
    :class:`_CachingJavaPackage`.

    py4j describes a name that is neither a class nor a package as a package. By Java's convention the name of a class
    begins with a capital letter: a "package" with such a name is an absent class, and is not kept, because the class
    can be added to the JVM later.
    """
    if isinstance(found, JavaPackage):
        if name[:1].isupper():
            return found
        found = _CachingJavaPackage(found)
    elif not isinstance(found, JavaClass):
        return found
    return found_by_name.setdefault(name, found)
