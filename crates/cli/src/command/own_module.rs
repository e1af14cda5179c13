//! The functions of commands that name none.

/// Pattern of all functions of the program's own module, without those of its libraries.
const OWN_MODULE: &str = ":*";

/// Returns the functions that a command line names, or the pattern of the program's own module if it names none.
pub(crate) fn unless_named(functions: Vec<String>) -> Vec<String> {
    if functions.is_empty() { vec![OWN_MODULE.to_owned()] } else { functions }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_commands_without_a_function_take_the_own_module() {
        assert_eq!(unless_named(Vec::new()), [":*"]);
        assert_eq!(unless_named(vec!["*".to_owned()]), ["*"]);
    }
}
