//! What the request stage must know of a program. The engine implements it; tests use a table.

use ingraft_model::{Avma, FunctionRef, ModuleRef, Pid, Scalar};

/// How an integer of the program is reached from an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// The pointers on the way: how far each lies behind where the one before it leads, or behind the address.
    pub pointers: Vec<i64>,
    /// How far the integer lies behind where the last of them leads.
    pub offset: i64,
    /// The integer.
    pub scalar: Scalar,
}

/// An integer in a variable of the program, or where a variable leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Global {
    /// Where it is.
    pub at: Location,
    /// How the integer is reached from there.
    pub access: Access,
    /// Whether debugging information says what it is, not only how large.
    pub described: bool,
}

/// Where a variable of the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Where memory stays mapped as long as the process lives.
    Lasting(Avma),
    /// Where it may be unmapped.
    Fleeting(Avma),
    /// Every thread has its own, so far from its pointer.
    PerThread(i64),
    /// The same in a library.
    PerThreadOfLibrary(i64),
}

/// What a function gets or gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// What `$arg[n]` means: an argument in the place of the n-th integer.
    Argument(u8),
    /// What `$return` means.
    Result,
}

/// Why data of the program cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The program has nothing of that name.
    #[error("{what}")]
    NotFound {
        /// What is not there.
        what: String,
        /// What there is.
        help: Option<String>,
    },
    /// It is no integer that code can read, or it is not known what it is.
    #[error("{0}")]
    Unreadable(String),
}

impl Unresolved {
    fn unknown() -> Self {
        Unresolved::Unreadable("what this program's data is made of is not known".to_owned())
    }
}

/// A program to which requests are made.
pub trait Program {
    /// Name of the machine, the value of `$machine`.
    fn machine(&self) -> &str;
    /// What the program runs on, e.g. `linux`, `unix`: definitions of other flavors do not exist for it.
    fn flavors(&self) -> &[String];
    /// Its process id.
    fn pid(&self) -> Pid;
    /// All modules whose functions can be woven.
    fn modules(&self) -> Vec<ModuleRef>;
    /// The modules that a name in a focus or a list means.
    fn modules_named(&self, name: &str) -> Vec<ModuleRef>;
    /// All functions of a module.
    fn functions_of(&self, module: ModuleRef) -> Vec<FunctionRef>;
    /// All functions of a name, or of a pattern with `*` and `?`, in any module; for lists, `$start` and `$exit`.
    fn functions_named(&self, name: &str) -> Vec<FunctionRef>;
    /// The functions that a focus means; `name{0xOFFSET}` tells equal names apart.
    fn function(&self, module: &str, function: &str) -> Vec<FunctionRef>;
    /// The functions that an item of a list means by module and function. Both may be patterns with `*` and `?` where the program
    /// supports that.
    fn functions_matching(&self, module: &str, function: &str) -> Vec<FunctionRef> {
        self.function(module, function)
    }
    /// The name of a module.
    fn module_name(&self, module: ModuleRef) -> &str;
    /// The name of a function.
    fn function_name(&self, function: FunctionRef) -> &str;
    /// The variable that a name means: `NAME`, `FILE:NAME` or `MODULE:NAME`; with members, what they lead to in it, pointers followed.
    fn variable(&self, _name: &str, _members: &[&str]) -> Result<Global, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// Where the variable that a name means lies, whatever its type; the name as for [`Program::variable`].
    fn address(&self, _name: &str) -> Result<Avma, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// The functions that a function calls; why not if that is not known of all its calls before they are made.
    fn callees(&self, _function: FunctionRef) -> Result<Vec<FunctionRef>, Unresolved> {
        Err(Unresolved::unknown())
    }
    /// What members lead to in what a function gets or gives.
    fn member(&self, _function: FunctionRef, _of: Parameter, _members: &[&str]) -> Result<Access, Unresolved> {
        Err(Unresolved::unknown())
    }
}
