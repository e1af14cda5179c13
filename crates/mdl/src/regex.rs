//! Regular expressions for `exclude regex`: `. [] * + ? | ()` and escapes, anchored at both ends. All states are followed at
//! once, so that no expression takes exponential time.

/// A compiled expression.
#[derive(Clone, Debug)]
pub(crate) struct Regex {
    program: Vec<Op>,
}

#[derive(Clone, Debug)]
enum Op {
    Char(char),
    Any,
    /// Negated or not, and its ranges.
    Set(bool, Vec<(char, char)>),
    /// Go on at both.
    Split(usize, usize),
    Jump(usize),
    Match,
}

/// Longest compiled expression.
const MAX_OPS: usize = 4096;
/// Deepest nesting of groups.
const MAX_GROUPS: u32 = 64;

struct Compiler<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    depth: u32,
}

impl Regex {
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('^').unwrap_or(text);
        let mut compiler = Compiler { rest: inner.chars().peekable(), depth: 0 };
        let mut program = compiler.alternatives()?;
        if compiler.rest.next().is_some() {
            return Err(format!("a `)` without a `(` in the expression `{text}`"));
        }
        program.push(Op::Match);
        Ok(Regex { program })
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        let mut now = vec![false; self.program.len()];
        self.follow(0, &mut now);
        for c in text.chars() {
            let mut next = vec![false; self.program.len()];
            for (i, op) in self.program.iter().enumerate() {
                let hit = now[i]
                    && match op {
                        Op::Char(x) => *x == c,
                        Op::Any => true,
                        Op::Set(negated, ranges) => ranges.iter().any(|(a, b)| (*a..=*b).contains(&c)) != *negated,
                        _ => false,
                    };
                if hit {
                    self.follow(i + 1, &mut next);
                }
            }
            now = next;
        }
        now.last().copied().unwrap_or(false)
    }

    /// Marks what can be reached from `at` without a character.
    fn follow(&self, at: usize, states: &mut [bool]) {
        let mut open = vec![at];
        while let Some(at) = open.pop() {
            if states.get(at).copied().unwrap_or(true) {
                continue;
            }
            states[at] = true;
            match self.program[at] {
                Op::Split(a, b) => open.extend([a, b]),
                Op::Jump(to) => open.push(to),
                _ => {}
            }
        }
    }
}

/// Targets inside `ops` moved by `by`.
fn moved(mut ops: Vec<Op>, by: usize) -> Vec<Op> {
    for op in &mut ops {
        match op {
            Op::Split(a, b) => {
                *a += by;
                *b += by;
            }
            Op::Jump(to) => *to += by,
            _ => {}
        }
    }
    ops
}

impl Compiler<'_> {
    fn alternatives(&mut self) -> Result<Vec<Op>, String> {
        let mut ops = self.sequence()?;
        while self.rest.next_if_eq(&'|').is_some() {
            let other = self.sequence()?;
            let (left, right) = (ops.len(), other.len());
            let mut both = vec![Op::Split(1, left + 2)];
            both.extend(moved(ops, 1));
            both.push(Op::Jump(left + 2 + right));
            both.extend(moved(other, left + 2));
            ops = both;
        }
        Ok(ops)
    }

    fn sequence(&mut self) -> Result<Vec<Op>, String> {
        let mut ops = Vec::new();
        while let Some(c) = self.rest.next_if(|c| *c != '|' && *c != ')') {
            if c == '$' && self.rest.peek().is_none() {
                break;
            }
            let mut atom = self.atom(c)?;
            while let Some(repeat) = self.rest.next_if(|c| matches!(c, '*' | '+' | '?')) {
                let length = atom.len();
                atom = match repeat {
                    '+' => {
                        atom.push(Op::Split(0, length + 1));
                        atom
                    }
                    _ => {
                        let back = if repeat == '*' { Some(Op::Jump(0)) } else { None };
                        let mut looped = vec![Op::Split(1, length + 1 + usize::from(back.is_some()))];
                        looped.extend(moved(atom, 1));
                        looped.extend(back);
                        looped
                    }
                };
            }
            let at = ops.len();
            ops.extend(moved(atom, at));
            if ops.len() > MAX_OPS {
                return Err("the regular expression is too long".to_owned());
            }
        }
        Ok(ops)
    }

    fn atom(&mut self, c: char) -> Result<Vec<Op>, String> {
        Ok(match c {
            '.' => vec![Op::Any],
            '[' => vec![self.set()?],
            '*' | '+' | '?' => return Err(format!("`{c}` repeats nothing in the regular expression")),
            '\\' => match self.rest.next() {
                Some('d') => vec![Op::Set(false, vec![('0', '9')])],
                Some('w') => vec![Op::Set(false, vec![('a', 'z'), ('A', 'Z'), ('0', '9'), ('_', '_')])],
                Some('s') => vec![Op::Set(false, vec![(' ', ' '), ('\t', '\r')])],
                Some(c) => vec![Op::Char(c)],
                None => return Err("the regular expression ends with a backslash".to_owned()),
            },
            '(' => {
                self.depth += 1;
                if self.depth > MAX_GROUPS {
                    return Err("the groups of the regular expression nest too deeply".to_owned());
                }
                let inner = self.alternatives()?;
                self.depth -= 1;
                if self.rest.next() != Some(')') {
                    return Err("a `(` without a `)` in the regular expression".to_owned());
                }
                inner
            }
            c => vec![Op::Char(c)],
        })
    }

    fn set(&mut self) -> Result<Op, String> {
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        loop {
            let c = self.rest.next().ok_or("a `[` without a `]` in the regular expression")?;
            if c == ']' && !ranges.is_empty() {
                return Ok(Op::Set(negated, ranges));
            }
            let mut end = c;
            if self.rest.peek() == Some(&'-') {
                self.rest.next();
                match self.rest.next_if(|c| *c != ']') {
                    Some(last) => end = last,
                    None => ranges.push(('-', '-')),
                }
            }
            ranges.push((c, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_whole_texts() {
        for (expression, yes, no) in [
            ("abc", "abc", "abcd"),
            ("a.c", "axc", "ac"),
            ("ab*c", "abbbc", "abb"),
            ("ab+c", "abc", "ac"),
            ("ab?c", "ac", "abbc"),
            ("(ab|cd)+e", "abcde", "abc"),
            ("^x$", "x", "xx"),
            ("[^a-c]+", "xyz", "xaz"),
            ("[]x]", "]", "y"),
            (r"\.\d+", ".42", "42"),
            ("(a*)*b", "aaab", "aaa"),
            ("a|", "", "b"),
        ] {
            let regex = Regex::new(expression).expect(expression);
            assert!(regex.matches(yes), "{expression} {yes}");
            assert!(!regex.matches(no), "{expression} {no}");
        }
    }

    #[test]
    fn bad_expressions_are_errors() {
        for bad in ["(", ")", "*a", "[a", "a\\", &"(".repeat(100)] {
            assert!(Regex::new(bad).is_err(), "{bad}");
        }
    }
}
