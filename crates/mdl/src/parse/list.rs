//! `resourceList` in its spellings, and `exclude`.

use super::{ErrorReported, Parsed, Parser, closest};
use crate::ast::{DefinitionKind, ElementKind, ExcludeDefinition, Ident, ListDefinition, TextLiteral};
use crate::diagnostic::codes;
use crate::lex::TokenKind;

impl Parser<'_, '_> {
    pub(super) fn list(&mut self) -> Parsed<DefinitionKind> {
        let keyword = self.span();
        if self.at_word("list") {
            self.old(
                keyword,
                "`list` is an older spelling",
                "write `resourceList NAME is procedure { items {…}; flavor {…}; }`",
            );
        }
        self.bump();
        if self.at_mark("(") {
            return self.old_list();
        }
        let name = match self.peek() {
            TokenKind::Text(name) => Ident { name: name.clone(), span: self.bump() },
            _ => self.name("the list's name")?,
        };
        if self.at_mark("{") {
            // A list of 1994 holds names of functions and nothing else.
            let items = self.items("{", "}", false)?;
            let list =
                ListDefinition { name, element: ElementKind::Procedure, items, flavors: Vec::new(), library: false };
            return Ok(DefinitionKind::List(list));
        }
        self.need_word("is")?;
        let element = self.choice("the type of the items", &ElementKind::ALL)?;
        let mut list = ListDefinition { name, element, items: Vec::new(), flavors: Vec::new(), library: false };
        let mut seen = [false; 3];
        self.block(|p| p.list_field(&mut list, &mut seen))?;
        for (present, field) in seen.into_iter().zip(["items", "flavor"]) {
            if !present && !self.broken {
                let message = format!("the list `{}` has no `{field}`", list.name.name);
                self.error(codes::MISSING, list.name.span, message).help = Some(format!("add `{field} {{ … }};`"));
            }
        }
        Ok(DefinitionKind::List(list))
    }

    fn list_field(&mut self, list: &mut ListDefinition, seen: &mut [bool; 3]) -> Parsed<()> {
        let span = self.span();
        let index = match self.word() {
            Some("items") => {
                self.bump();
                list.items = self.list_items()?;
                0
            }
            Some("flavor") => {
                list.flavors = self.flavor()?;
                1
            }
            Some("library") => {
                self.bump();
                list.library = self.boolean()?;
                2
            }
            word => {
                let near = word.and_then(|w| closest(w, &["items", "flavor", "library"]));
                let help = near
                    .map_or_else(|| "one of: items, flavor, library".to_owned(), |w| format!("did you mean `{w}`?"));
                return self.expected_help("a field of a list", help);
            }
        };
        if std::mem::replace(&mut seen[index], true) {
            let text = self.source.slice(span).to_owned();
            self.error(codes::REPEATED, span, format!("`{text}` is given twice")).help =
                Some("keep one of them".to_owned());
        }
        self.semicolon()
    }

    /// Reads the older form of a list: `resourceList ( procedure, "name" { … }, true, unix );`.
    fn old_list(&mut self) -> Parsed<DefinitionKind> {
        self.need_mark("(")?;
        let element = self.choice("the type of the items", &ElementKind::ALL)?;
        self.need_mark(",")?;
        let name = self.text("the list's name")?;
        let items = self.list_items()?;
        self.need_mark(",")?;
        let library = self.boolean()?;
        self.need_mark(",")?;
        let flavors = vec![self.any_word("a flavor")?];
        self.need_mark(")")?;
        self.semicolon()?;
        let name = Ident { name: name.value, span: name.span };
        Ok(DefinitionKind::List(ListDefinition { name, element, items, flavors, library }))
    }

    /// Reads the items of a list: `{ "a", "b" }` or `, ( "a", "b" )`.
    fn list_items(&mut self) -> Parsed<Vec<TextLiteral>> {
        if self.at_mark(",") && matches!(self.ahead(1), TokenKind::Mark("{")) {
            let message = "a `,` before `{`";
            self.error(codes::EXPECTED, self.span(), message).help =
                Some("no comma before braces: `\"name\" { … }`, or `\"name\", ( … )`".to_owned());
            self.bump();
        }
        if self.at_mark("{") {
            return self.items("{", "}", true);
        }
        self.need_mark(",")?;
        self.items("(", ")", true)
    }

    pub(super) fn items(&mut self, open: &'static str, close: &'static str, commas: bool) -> Parsed<Vec<TextLiteral>> {
        self.need_mark(open)?;
        let mut items = Vec::new();
        loop {
            match self.text("an item in quotes") {
                Ok(item) => items.push(item),
                Err(ErrorReported) => {
                    // An error in one item does not hide the rest of the list.
                    while !self.at_end()
                        && !["}", ")", ",", ";"].iter().any(|m| self.at_mark(m))
                        && !self.at_definition()
                    {
                        self.bump();
                    }
                }
            }
            if self.eat_mark(close) {
                return Ok(items);
            }
            let comma = self.eat_mark(",");
            if !comma && (commas || !matches!(self.peek(), TokenKind::Text(_))) {
                return self.expected(&format!("`,` or `{close}`"));
            }
        }
    }

    /// Reads `flavor { unix, mpi }` or `flavor = { … }`. The keyword is the next token.
    pub(super) fn flavor(&mut self) -> Parsed<Vec<Ident>> {
        self.bump();
        self.eat_mark("=");
        if !self.at_mark("{") {
            return self.expected_help("`{`", "write `flavor { unix };`");
        }
        self.bump();
        let mut flavors = vec![self.any_word("a flavor")?];
        while self.eat_mark(",") {
            flavors.push(self.any_word("a flavor")?);
        }
        self.need_mark("}")?;
        Ok(flavors)
    }

    pub(super) fn exclude(&mut self) -> Parsed<DefinitionKind> {
        let span = self.span();
        let word = self.word().unwrap_or_default().to_owned();
        self.bump();
        let (mut no_case, mut regex) = (false, false);
        while let Some(flag) = self.word() {
            let seen = match flag {
                "noCase" => &mut no_case,
                "regex" => &mut regex,
                _ => return self.expected_help("a pattern in quotes", "write `exclude noCase regex \"/Code/…\";`"),
            };
            let twice = std::mem::replace(seen, true);
            let at = self.bump();
            if twice {
                self.error(codes::REPEATED, at, "said twice").help = Some("remove one".to_owned());
            }
        }
        let mut pattern = self.text("a pattern in quotes")?;
        if word != "exclude" {
            // exclude_lib "m"; exclude_func "m" "f"; exclude_node "/Code/…"
            self.eat_mark(",");
            let second = if matches!(self.peek(), TokenKind::Text(_)) { Some(self.text("a function")?) } else { None };
            pattern.value = match (word.as_str(), second) {
                (_, Some(function)) => format!("/Code/{}/{}", pattern.value, function.value),
                ("exclude_node", None) => pattern.value,
                ("exclude_func", None) if !pattern.value.contains('/') => format!("/Code/*/{}", pattern.value),
                _ => format!("/Code/{}", pattern.value.trim_start_matches("/Code/")),
            };
            let help = format!("write `exclude \"{}\";`", pattern.value);
            self.old(span, format!("`{word}` is an older spelling"), help);
        }
        self.semicolon()?;
        Ok(DefinitionKind::Exclude(ExcludeDefinition { no_case, regex, pattern }))
    }
}
