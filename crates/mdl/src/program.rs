//! Facts about a program that the request stage needs. The engine implements the trait; tests use a table.

use std::sync::Arc;

use ingraft_model::{
    Avma, DataShape, Enumerators, Float, FunctionId, LoopEdges, ModuleId, Offset, PartName, Pid, PointId, Scalar,
};

/// Path from an address to an integer of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IntegerPath {
    /// Offsets of the pointers on the path, in bytes: the first from the address, each other one from where the pointer before it leads.
    pub pointers: Vec<i64>,
    /// Distance of the integer from the place where the last pointer leads, in bytes.
    pub offset: i64,
    /// Width and sign of the integer.
    pub scalar: Scalar,
}

/// An integer in a variable of the program, or one to which a variable leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramVariable {
    /// Location of the variable.
    pub at: VariableLocation,
    /// Path from the variable to the integer.
    pub access: IntegerPath,
    /// Whether debugging information gives the type of the variable, not only its size.
    pub described: bool,
    /// Names of the integer's values, if it is an enumeration.
    pub names: Option<Enumerators>,
}

/// Location of a variable of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VariableLocation {
    /// Address in memory that stays mapped as long as the process lives.
    Lasting(Avma),
    /// Address in memory that may be unmapped.
    Fleeting(Avma),
    /// Offset from the thread pointer. Every thread has its own variable.
    PerThread(i64),
    /// Like [`VariableLocation::PerThread`], in a library.
    PerThreadOfLibrary(i64),
}

/// Argument or result of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// `$arg[n]`: the n-th argument, if it is passed as an integer.
    Argument(u8),
    /// `$return`.
    Result,
}

/// Place of an argument of a function that debugging information names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedArgument {
    /// An integer or pointer: `$arg[number]`, of which only the bytes of its type count.
    Integer {
        /// Number of the argument among integers and pointers.
        number: u8,
        /// Type of the argument.
        scalar: Scalar,
    },
    /// A floating-point number.
    Float(Float),
}

/// Value of a function that debugging information describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescribedData<'n> {
    /// The argument with this name.
    Named(&'n str),
    /// `$arg[n]` or `$return`.
    Parameter(Parameter),
}

/// Answer of the program about an integer, with the names of the integer's values if it is an enumeration.
pub type WithNames<T> = (T, Option<Enumerators>);

/// Reason why code cannot use data of the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The program has nothing of that name.
    #[error("{what}")]
    NotFound {
        /// Description of the missing thing.
        what: String,
        /// Help in words: a similar name, or the names that the program has; `None` if it has none.
        help: Option<String>,
    },
    /// The data is no integer that code can read, or its type is not known.
    #[error("{0}")]
    Unreadable(String),
}

impl Unresolved {
    fn unknown() -> Self {
        Unresolved::Unreadable("what this program's data is made of is not known".to_owned())
    }
}

/// Number of loops that an error names.
const LOOPS_NAMED: usize = 8;

/// A program to which requests are made.
pub trait ProgramFacts {
    /// Name of the machine, the value of `$machine`.
    fn machine(&self) -> &str;
    /// Flavors of the program's platform, e.g. `linux`, `unix`: definitions of other flavors do not exist for it.
    fn flavors(&self) -> &[String];
    /// Process id of the program.
    fn pid(&self) -> Pid;
    /// All modules whose functions can be woven.
    fn modules(&self) -> Vec<ModuleId>;
    /// The modules that a name in a focus or a list means.
    fn modules_named(&self, name: &str) -> Vec<ModuleId>;
    /// All functions of a module.
    fn functions_of(&self, module: ModuleId) -> Vec<FunctionId>;
    /// All functions of a name, or of a pattern with `*` and `?`, in any module; for lists, `$start` and `$exit`.
    fn functions_named(&self, name: &str) -> Vec<FunctionId>;
    /// The functions that a focus means; `name{0xOFFSET}` tells equal names apart.
    fn function(&self, module: &str, function: &str) -> Vec<FunctionId>;
    /// The functions that an item of a list means by module and function. Both may be patterns with `*` and `?` where the program
    /// supports that.
    fn functions_matching(&self, module: &str, function: &str) -> Vec<FunctionId> {
        self.function(module, function)
    }
    /// The name of a module.
    fn module_name(&self, module: ModuleId) -> &str;
    /// The name of a function.
    fn function_name(&self, function: FunctionId) -> &str;
    /// The variable that a name means: `NAME`, `FILE:NAME` or `MODULE:NAME`. With members, the integer to which they lead from the
    /// variable, through pointers.
    fn variable(&self, _name: &str, _members: &[&str]) -> Result<ProgramVariable, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// Address of the variable that a name means, whatever its type. The name has the form that [`ProgramFacts::variable`] takes.
    fn address(&self, _name: &str) -> Result<Avma, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The functions that a function calls; an error if some callee is not known before the call is made.
    fn callees(&self, _function: FunctionId) -> Result<Vec<FunctionId>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// Checks that a basic block of a function begins at an offset.
    fn block(&self, _function: FunctionId, _offset: Offset) -> Result<(), Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The edges from one basic block of a function to another one, of every kind. An error if there is none.
    fn edges(&self, _function: FunctionId, _from: Offset, _to: Offset) -> Result<Arc<[PointId]>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The loops of a function, sorted by header.
    fn loops(&self, _function: FunctionId) -> Result<Arc<[LoopEdges]>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The loop of a function whose header begins at an offset. An error that names loops if there is none.
    fn loop_at(&self, function: FunctionId, header: Offset) -> Result<LoopEdges, Unresolved> {
        let loops = self.loops(function)?;
        if let Ok(at) = loops.binary_search_by_key(&header, |one| one.header) {
            return loops.get(at).cloned().ok_or_else(Unresolved::unknown);
        }
        let help = match &*loops {
            [] => "the function has no loop".to_owned(),
            loops => {
                let named = |one: &LoopEdges| PartName::Loop(one.header).to_string();
                let names: Vec<String> = loops.iter().take(LOOPS_NAMED).map(named).collect();
                let rest = if loops.len() > LOOPS_NAMED { ", …" } else { "" };
                format!("its loops are {}{rest}", names.join(", "))
            }
        };
        let what = format!("{} is no loop of the function", PartName::Loop(header));
        Err(Unresolved::NotFound { what, help: Some(help) })
    }
    /// The named arguments of a function that can be shown, in their order. The value of a pointer to a structure is the structure.
    fn arguments(&self, _function: FunctionId) -> Result<Vec<(String, DataShape)>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The argument of a function with this name.
    fn argument(&self, _function: FunctionId, _name: &str) -> Result<WithNames<NamedArgument>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// Returns the path by which members lead to an integer in an argument or result of a function.
    fn member(
        &self,
        _function: FunctionId,
        _of: Parameter,
        _members: &[&str],
    ) -> Result<WithNames<IntegerPath>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// Returns the integers that hold an argument or the result of a function, or the value to which members lead in it. `follow` says
    /// whether the value of a pointer to a structure is the structure, in any language.
    fn shown(
        &self,
        _function: FunctionId,
        _of: DescribedData<'_>,
        _members: &[&str],
        _follow: bool,
    ) -> Result<DataShape, Unresolved> {
        Err(Unresolved::unknown())
    }
}
