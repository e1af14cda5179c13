//! Names of the values of registers: the type of an argument or a result in the function where code runs, if it is an enumeration.
//!
//! Code that only uses registers is the same in all functions, and is lowered once for many of them. So the types are looked up here, behind
//! the request stage, and only if the functions are few: each look-up reads the debugging information of the module.

use std::sync::Arc;

use ingraft_mdl::{DescribedData, Parameter, ProgramFacts};
use ingraft_model::{DataShape, FunctionId, RecordColumn, RecordContent, ValueNames, WordOrigin};

use crate::measure::request::WantedPair;
use crate::program::modules::Modules;
use crate::program::variables;

/// Largest number of functions whose registers are looked at.
const FUNCTIONS_MAX: usize = 64;

/// Replaces the names that registers tell by those of their types.
pub fn name_registers(modules: &Modules, wanted: &mut [WantedPair]) {
    if wanted.len() > FUNCTIONS_MAX {
        return;
    }
    for WantedPair { function, instrumentation, .. } in wanted {
        let Some(function) = *function else { continue };
        let names = |names: &mut ValueNames| {
            if let ValueNames::OfRegister(origin) = *names {
                *names = of_register(modules, function, origin);
            }
        };
        instrumentation.key_names.iter_mut().for_each(names);
        let is_register = |column: &RecordColumn| {
            matches!(
                column.content,
                RecordContent::Number(ValueNames::OfRegister(_)) | RecordContent::Return(ValueNames::OfRegister(_))
            )
        };
        if !instrumentation.records.iter().flatten().any(is_register) {
            continue;
        }
        let mut records: Vec<Vec<RecordColumn>> = instrumentation.records.to_vec();
        let returns_nothing = variables::returns_nothing(modules, function);
        for column in records.iter_mut().flatten() {
            if returns_nothing && matches!(column.content, RecordContent::Return(_)) {
                column.content = RecordContent::NoReturn;
            }
            if let RecordContent::Number(of) | RecordContent::Return(of) = &mut column.content {
                names(of);
            }
        }
        instrumentation.records = Arc::from(records);
    }
}

/// The names of the values of a register in a function.
fn of_register(modules: &Modules, function: FunctionId, origin: WordOrigin) -> ValueNames {
    let of = match origin {
        WordOrigin::Argument(number) => Parameter::Argument(number),
        WordOrigin::Result => Parameter::Result,
    };
    match modules.shown(function, DescribedData::Parameter(of), &[], false) {
        Ok(DataShape::Number(_, names)) => names.into(),
        _ => ValueNames::None,
    }
}
