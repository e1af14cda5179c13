//! Checks paths of constraints, and warns about flags that count wrongly in recursion.

use super::meta::DefinitionCheck;
use crate::ast::{
    CodeKind, CodeStatement, ConstraintDefinition, ExprKind, MetaKind, MetaStatement, ResourcePattern, SyntaxExpr,
    TextLiteral,
};
use crate::diagnostic::{Severity, codes};

/// The kinds of synchronisation objects.
pub(crate) const SYNC: [&str; 8] =
    ["Message", "Barrier", "Semaphore", "SpinLock", "Window", "Mutex", "CondVar", "RwLock"];

/// Whether one focus can match both paths.
pub(super) fn overlap(a: &ResourcePattern, b: &ResourcePattern) -> bool {
    let same = |(x, y): (&crate::ast::Ident, &crate::ast::Ident)| x.name == y.name || x.name == "*" || y.name == "*";
    a.parts.len() == b.parts.len() && !a.parts.is_empty() && a.parts.iter().zip(&b.parts).all(same)
}

impl DefinitionCheck<'_, '_> {
    pub(super) fn path(&mut self, constraint: &ConstraintDefinition) {
        let path = &constraint.path;
        let Some((root, names)) = path.parts.split_first() else {
            let message = format!("the constraint `{}` has no path and restricts nothing", constraint.name.name);
            self.report(codes::IGNORED, Severity::Warning, constraint.name.span, message);
            return;
        };
        match root.name.as_str() {
            "Code" if names.len() > 2 => {
                self.error(codes::PATH, path.span, "a path below /Code has at most two more levels").help =
                    Some("write /Code for modules, /Code/* for functions, /Code/*/* for loops".to_owned());
            }
            "Code" => {
                if let Some(name) = names.iter().find(|n| n.name != "*") {
                    let message =
                        format!("`{}` never matches: only the levels of a /Code path have a meaning", name.name);
                    self.report(codes::PATH, Severity::Warning, name.span, message).help =
                        Some("write `*`, and choose the function in the focus".to_owned());
                }
            }
            "SyncObject" => {
                if let Some(kind) = names.first().filter(|n| n.name != "*" && !SYNC.contains(&n.name.as_str())) {
                    let message = format!("/SyncObject has no `{}`", kind.name);
                    self.error(codes::PATH, kind.span, message).help = Some(format!("one of: {}", SYNC.join(", ")));
                }
            }
            "Machine" | "Host" | "Process" | "Memory" => {
                let message = format!(
                    "a constraint of /{} has no effect: every metric can be had per process and thread",
                    root.name
                );
                self.report(codes::IGNORED, Severity::Warning, path.span, message);
            }
            other => {
                let message = format!("there is no hierarchy /{other}");
                self.error(codes::PATH, root.span, message).help =
                    Some("one of: /Code, /SyncObject (processes and threads need no constraint)".to_owned());
            }
        }
    }

    /// Checks the kinds of objects that an `is default` constraint names.
    pub(super) fn kinds(&mut self, path: &ResourcePattern, kinds: &[TextLiteral]) {
        let of_kinds = matches!(path.parts.as_slice(), [root] if root.name == "SyncObject");
        if !of_kinds && let Some(kind) = kinds.first() {
            let message = "only a default of /SyncObject is for some kinds";
            self.error(codes::PATH, kind.span, message).help = Some("write `is default;`".to_owned());
            return;
        }
        for kind in kinds.iter().filter(|kind| !SYNC.contains(&kind.value.as_str())) {
            let message = format!("/SyncObject has no `{}`", kind.value);
            self.error(codes::PATH, kind.span, message).help = Some(format!("one of: {}", SYNC.join(", ")));
        }
    }

    /// Warns about a flag that is set at the entry and set to 0 at the return: the return of an inner call clears it for the outer call.
    pub(super) fn lint_flag(&mut self, constraint: &ConstraintDefinition, body: &[MetaStatement]) {
        if constraint.path.parts.first().is_none_or(|root| root.name != "Code") {
            return;
        }
        let mut seen = FlagUses::default();
        body.iter().for_each(|s| seen.meta(s, &constraint.name.name));
        if seen.set_at_entry && seen.cleared_at_return && !seen.calls {
            let message = format!(
                "`{0} = 1` at the entry and `{0} = 0` at the return go wrong in recursion",
                constraint.name.name
            );
            self.report(codes::IDIOM, Severity::Warning, constraint.name.span, message).help =
                Some("write `+= 1` and `-= 1`, or `is inclusive;`".to_owned());
        }
    }
}

#[derive(Default)]
struct FlagUses {
    set_at_entry: bool,
    cleared_at_return: bool,
    calls: bool,
}

impl FlagUses {
    fn meta(&mut self, meta: &MetaStatement, flag: &str) {
        match &meta.kind {
            MetaKind::Block(inner) => inner.iter().for_each(|s| self.meta(s, flag)),
            MetaKind::Foreach(_, list, inner) => {
                self.calls |= matches!(&list.bare().kind, ExprKind::Field(_, field) if field.name == "calls");
                self.meta(inner, flag);
            }
            MetaKind::If(_, then, otherwise) => {
                self.meta(then, flag);
                if let Some(otherwise) = otherwise {
                    self.meta(otherwise, flag);
                }
            }
            MetaKind::Insert(insert) => {
                let point = match &insert.points.bare().kind {
                    ExprKind::Field(_, field) => field.name.as_str(),
                    _ => "",
                };
                self.calls |= point == "calls";
                insert.code.iter().for_each(|c| self.code(c, flag, point));
            }
        }
    }

    fn code(&mut self, code: &CodeStatement, flag: &str, point: &str) {
        match &code.kind {
            CodeKind::Block(inner) => inner.iter().for_each(|c| self.code(c, flag, point)),
            CodeKind::If(_, then, otherwise) => {
                self.code(then, flag, point);
                if let Some(otherwise) = otherwise {
                    self.code(otherwise, flag, point);
                }
            }
            CodeKind::Expr(SyntaxExpr { kind: ExprKind::Assign(target, crate::ast::AssignOp::Set, value), .. }) => {
                if matches!(&target.kind, ExprKind::Name(name) if name == flag) {
                    let zero = matches!(value.bare().kind, ExprKind::Int(0));
                    self.set_at_entry |= point == "entry" && !zero;
                    self.cleared_at_return |= point == "return" && zero;
                }
            }
            CodeKind::Expr(_) => {}
        }
    }
}
