"""Rewrites a module of tests, before it runs: its async generators pass through a class like `contextlib.aclosing`.

- `name = generator()` becomes `async with Aclosing(generator()) as name:` around the rest of the block;
- `async for item in stream:` gets such a block around it;
- `await stream.aclose()` becomes `await Aclosing(stream).__aexit__(None, None, None)`.

Synchronous code stays as it is: it has no place for `async with`.
"""

import ast
import inspect
from collections import Counter
from types import ModuleType

STREAM = "_stream_in_aclosing"


def through(aclosing: type, suite: ModuleType) -> tuple[ModuleType, Counter[str]]:
    """The module rewritten, and how often each of the three was done."""
    tree = ast.parse(inspect.getsource(suite))
    rewriter = _Rewriter(_makers(tree))
    code = compile(ast.fix_missing_locations(rewriter.visit(tree)), inspect.getfile(suite), "exec")
    module = ModuleType(suite.__name__)
    vars(module)["Aclosing"] = aclosing
    exec(code, vars(module))
    return module, rewriter.done


def _makers(tree: ast.Module) -> set[str]:
    """The names of the async generator functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    return {function.name for function in functions if any(_yields(statement) for statement in function.body)}


def _yields(node: ast.AST) -> bool:
    """Whether this is a `yield`, or holds one that is not an inner function's."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return False
    return isinstance(node, ast.Yield) or any(_yields(child) for child in ast.iter_child_nodes(node))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, makers: set[str]) -> None:
        self._makers = makers
        self.done: Counter[str] = Counter()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.body = self._in_blocks(node.body)
        return node

    def _in_blocks(self, body: list[ast.stmt]) -> list[ast.stmt]:
        for place, statement in enumerate(body[:-1]):
            match statement:
                case ast.Assign(targets=[ast.Name() as name], value=made) if self._makes_generator(made):
                    self.done["blocks"] += 1
                    return [*body[:place], _block(made, name, self._in_blocks(body[place + 1 :]))]
        return body

    def _makes_generator(self, value: ast.expr) -> bool:
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr="__aiter__")):
                return self._makes_generator(inner)
            case ast.Call(func=ast.Name(id=name)):
                return name in self._makers
        return False

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        self.done["loops"] += 1
        source, node.iter = node.iter, ast.Name(STREAM, ast.Load())
        return _block(source, ast.Name(STREAM, ast.Store()), [node])

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Attribute(value=stream, attr="aclose"), args=[]):
                self.done["closes"] += 1
                leave = ast.Attribute(_aclosing(stream), "__aexit__", ast.Load())
                node.value = ast.Call(leave, [ast.Constant(None)] * 3, [])
        return node


def _aclosing(stream: ast.expr) -> ast.Call:
    return ast.Call(ast.Name("Aclosing", ast.Load()), [stream], [])


def _block(stream: ast.expr, name: ast.Name, body: list[ast.stmt]) -> ast.AsyncWith:
    return ast.AsyncWith([ast.withitem(_aclosing(stream), name)], body)
