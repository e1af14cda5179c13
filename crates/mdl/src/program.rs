//! What the request stage must know of a program. The engine implements it; tests use a table.

use ingraft_model::Pid;

/// A module of a program: a number that only the implementor of [`Program`] understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleRef(pub u32);

/// A function of a program. Equal for aliases of one address, so that code is never put twice into the same function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionRef {
    /// Its module.
    pub module: ModuleRef,
    /// Its number in the module.
    pub function: u32,
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
    /// All functions of a name in any module; for lists, `$start` and `$exit`.
    fn functions_named(&self, name: &str) -> Vec<FunctionRef>;
    /// The functions that a focus means; `name{0xOFFSET}` tells equal names apart.
    fn function(&self, module: &str, function: &str) -> Vec<FunctionRef>;
    /// The name of a module.
    fn module_name(&self, module: ModuleRef) -> &str;
    /// The name of a function.
    fn function_name(&self, function: FunctionRef) -> &str;
}
