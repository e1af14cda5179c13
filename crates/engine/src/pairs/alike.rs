//! The code that similar pairs share: a snippet that looks the key of an object up among the listed ones, instead of comparing it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ingraft_model::{
    BinaryOp, Expr, Insertion, Instrumentation, KeyListing, Shape, Snippet, Stmt, Tid, Variable, VariableId,
    VariableKind,
};
use rustc_hash::FxHasher;

use super::key::PairKey;

/// Common part of similar pairs.
#[derive(Clone, Debug)]
pub struct Alike {
    text: Arc<str>,
    helpers: Arc<str>,
    thread: Option<Tid>,
    /// The insertions, with snippets that look the key up in a table whose size is not fixed yet.
    insertions: Vec<Insertion>,
    /// Hash of all other fields.
    pub(super) hash: u64,
}

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (&self.text, &self.helpers, self.thread) == (&other.text, &other.helpers, other.thread)
            && self.insertions == other.insertions
    }
}

impl Alike {
    /// Returns the part of a pair that similar pairs have in common, and its key; `None` if its code cannot be shared.
    pub fn of(key: &PairKey, instrumentation: &Instrumentation) -> Option<(Self, u64)> {
        let object = instrumentation.object?;
        let [variable] = &*instrumentation.variables else { return None };
        let plain = (variable.kind, variable.shape) == (VariableKind::Counter, Shape::Counter);
        let nothing_else = instrumentation.event.is_none() && instrumentation.index_names.is_none();
        if !plain || !nothing_else || instrumentation.insertions.is_empty() {
            return None;
        }
        let mut known: Vec<(*const Snippet, Arc<Snippet>)> = Vec::new();
        let mut insertions = Vec::with_capacity(instrumentation.insertions.len());
        for insertion in &instrumentation.insertions {
            let plain = Arc::as_ptr(&insertion.snippet);
            let snippet = match known.iter().find(|(other, _)| *other == plain) {
                Some((_, shared)) => Arc::clone(shared),
                None => {
                    let shared = Arc::new(shared(&insertion.snippet, object)?);
                    known.push((plain, Arc::clone(&shared)));
                    shared
                }
            };
            insertions.push(Insertion { snippet, ..insertion.clone() });
        }
        let mut hasher = FxHasher::default();
        (&key.text, &key.helpers, instrumentation.thread.map(|tid| tid.0)).hash(&mut hasher);
        insertions.iter().for_each(|i| (i.function, &i.snippet).hash(&mut hasher));
        let (text, helpers) = (Arc::clone(&key.text), Arc::clone(&key.helpers));
        Some((Alike { text, helpers, thread: instrumentation.thread, insertions, hash: hasher.finish() }, object))
    }

    /// Instrumentation for all pairs of a group, whose first variable is the table.
    pub fn instrumentation(&self, listing: KeyListing, one: &Instrumentation) -> Instrumentation {
        let mut instrumentation = one.clone();
        let mut sized: Vec<(*const Snippet, Arc<Snippet>)> = Vec::new();
        instrumentation.insertions = self.insertions.clone();
        for insertion in &mut instrumentation.insertions {
            let any = Arc::as_ptr(&insertion.snippet);
            let known = sized.iter().find(|(other, _)| *other == any).map(|(_, snippet)| Arc::clone(snippet));
            insertion.snippet = known.unwrap_or_else(|| {
                let mut snippet = (*insertion.snippet).clone();
                set_listing(&mut snippet.stmts, listing);
                let snippet = Arc::new(snippet);
                sized.push((any, Arc::clone(&snippet)));
                snippet
            });
        }
        let shape = Shape::Listed(listing);
        let variables = instrumentation.variables.iter().map(|v| Variable { shape, sampled: false, ..v.clone() });
        instrumentation.variables = variables.collect();
        instrumentation
    }
}

/// A snippet that looks the key up instead of comparing it, and adds if the key is listed and all other conditions hold: the same code for
/// any listed key. `None` if the snippet has another form, or if it reads anything that does not come from the call.
fn shared(snippet: &Snippet, key: u64) -> Option<Snippet> {
    let (mut conditions, mut stmts) = (Vec::new(), snippet.stmts.as_slice());
    let amount = loop {
        match stmts {
            [Stmt::If(condition, body)] => {
                conjuncts(condition, &mut conditions);
                stmts = body;
            }
            [Stmt::Add(VariableId(0), amount)] => break amount,
            _ => return None,
        }
    };
    let mut depends = false;
    snippet.each_expr(&mut |e| depends |= !is_of_call(e));
    if depends {
        return None;
    }
    let at = conditions.iter().position(|condition| compared(condition, key).is_some())?;
    let looked_up = compared(conditions.remove(at), key)?.clone();
    if conditions.iter().any(|other| compared(other, key).is_some()) {
        return None;
    }
    let add = Stmt::AddListed(VariableId(0), KeyListing::of_places(16)?, looked_up, amount.clone());
    let and = |a: Expr, b: &Expr| Expr::Binary(BinaryOp::LogicalAnd, Box::new(a), Box::new(b.clone()));
    let stmts = match conditions.split_first() {
        None => vec![add],
        Some((first, others)) => vec![Stmt::If(others.iter().copied().fold((*first).clone(), and), vec![add])],
    };
    Some(Snippet { stmts })
}

/// Collects the conditions that must all hold.
fn conjuncts<'e>(condition: &'e Expr, out: &mut Vec<&'e Expr>) {
    match condition {
        Expr::Binary(BinaryOp::LogicalAnd, a, b) => {
            conjuncts(a, out);
            conjuncts(b, out);
        }
        other => out.push(other),
    }
}

/// The expression that a condition compares with the key.
fn compared(condition: &Expr, key: u64) -> Option<&Expr> {
    let is_key = |e: &Expr| *e == Expr::Const(key.cast_signed());
    match condition {
        Expr::Binary(BinaryOp::Equal, e, other) | Expr::Binary(BinaryOp::Equal, other, e) if is_key(other) => Some(e),
        _ => None,
    }
}

/// Whether an expression depends only on the call at whose point it is computed, and has no effect that is counted elsewhere.
fn is_of_call(e: &Expr) -> bool {
    matches!(
        e,
        Expr::Const(_)
            | Expr::Arg(_)
            | Expr::Return
            | Expr::ReturnAddress
            | Expr::Float(_)
            | Expr::Load(..)
            | Expr::ThreadPointer
            | Expr::Unary(..)
            | Expr::Binary(..)
    )
}

fn set_listing(stmts: &mut [Stmt], to: KeyListing) {
    for stmt in stmts {
        match stmt {
            Stmt::AddListed(_, listing, ..) => *listing = to,
            Stmt::If(_, body) => set_listing(body, to),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(a: Expr, b: i64) -> Expr {
        Expr::Binary(BinaryOp::Equal, Box::new(a), Box::new(Expr::Const(b)))
    }

    fn and(a: Expr, b: Expr) -> Expr {
        Expr::Binary(BinaryOp::LogicalAnd, Box::new(a), Box::new(b))
    }

    fn adds(condition: Expr, amount: Expr) -> Snippet {
        Snippet { stmts: vec![Stmt::If(condition, vec![Stmt::Add(VariableId(0), amount)])] }
    }

    #[test]
    fn a_comparison_with_the_key_becomes_a_look_up() {
        let one = |key: i64| adds(equal(Expr::Arg(0), key), Expr::Const(1));
        let shared_one = shared(&one(0x1000), 0x1000).expect("it can be shared");
        assert_eq!(shared_one.to_string(), "if listed v0[$arg[0]] += 1;");
        assert_eq!(Some(shared_one), shared(&one(0x2000), 0x2000));
        // other conditions are kept, and the key may be compared with any expression of the call
        let other = equal(Expr::Arg(1), 3);
        let nested = Stmt::If(other.clone(), adds(equal(Expr::Arg(0), 8), Expr::Arg(2)).stmts);
        let both = adds(and(equal(Expr::Arg(0), 8), other), Expr::Arg(2));
        assert_eq!(shared(&both, 8), shared(&Snippet { stmts: vec![nested] }, 8));
        assert!(shared(&both, 8).is_some());
    }

    #[test]
    fn other_snippets_keep_their_own_code() {
        let increment = Stmt::Add(VariableId(0), Expr::Const(1));
        let is = || equal(Expr::Arg(0), 8);
        for snippet in [
            Snippet { stmts: vec![increment.clone()] },
            Snippet { stmts: vec![Stmt::If(is(), vec![increment.clone(), increment.clone()])] },
            Snippet { stmts: vec![Stmt::If(is(), vec![Stmt::Set(VariableId(0), Expr::Const(1))])] },
            adds(equal(Expr::Arg(0), 9), Expr::Const(1)),
            adds(and(is(), equal(Expr::Arg(1), 8)), Expr::Const(1)),
            adds(is(), Expr::Variable(VariableId(0))),
            adds(and(is(), Expr::Variable(VariableId(0))), Expr::Const(1)),
        ] {
            assert_eq!(shared(&snippet, 8), None, "{snippet}");
        }
    }
}
