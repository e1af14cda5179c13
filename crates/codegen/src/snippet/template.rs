//! Cache of compiled snippets. Snippets that differ only in their counters are compiled once. Code for other counters is a copy with the
//! fields for counters overwritten (copy-and-patch, Xu and Kjolstad, OOPSLA 2021). The generator finds these fields by compiling the
//! snippet for shifted counters: they are the fields in which the two results differ.

use std::sync::Arc;

use iced_x86::{ConstantOffsets, Decoder, DecoderOptions};
use ingraft_model::Snippet;

use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::StackView;
use crate::snippet::generator::SnippetCode;
use crate::snippet::mini::{self, BaseState, Codes, MiniRequest, SnippetPart};

/// Maximum number of templates in the cache: a metric has a few for each kind of point.
const KEPT: usize = 32;
/// Maximum number of variables for which fields are looked for.
const VARIABLES_MAX: usize = 32;

/// Templates that were compiled so far for one environment.
#[derive(Clone, Debug, Default)]
pub struct Templates<'a>(Vec<Template<'a>>);

#[derive(Clone, Debug)]
struct Template<'a> {
    snippet: &'a Snippet,
    form: PointForm,
    codes: Arc<Codes>,
    places: CounterFields,
}

#[derive(Clone, Debug)]
enum CounterFields {
    /// The code was needed only once.
    NotSought,
    /// Some counter is not in a field of its own, so the code cannot be copied.
    None,
    Known(Arc<[CounterField]>),
}

/// Properties of a point on which the code of a snippet depends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PointForm {
    stack: StackView,
    private: bool,
    rax_free: bool,
    pushed: u8,
}

/// Field of an instruction that holds the index of a counter, or the displacement of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CounterField {
    part: SnippetPart,
    at: usize,
    wide: bool,
    variable: usize,
    /// Increase of the field for an increase of the counter's index by 1.
    scale: i64,
    /// Value of the field for counter 0.
    base: i64,
}

impl CounterField {
    /// Value of the field with these counters; `None` if it does not fit.
    fn value(&self, counters: &[u32]) -> Option<i64> {
        let value = self.base + self.scale * i64::from(*counters.get(self.variable)?);
        (self.wide || i32::try_from(value).is_ok()).then_some(value)
    }
}

/// Counters that replace those of a template.
#[derive(Clone, Debug)]
pub(crate) struct CounterBinding<'a> {
    places: Arc<[CounterField]>,
    counters: &'a [u32],
}

impl<'a> CounterBinding<'a> {
    /// Returns `None` if the value for some counter does not fit into its field.
    fn new(places: &Arc<[CounterField]>, counters: &'a [u32]) -> Option<Self> {
        let fits = places.iter().all(|place| place.value(counters).is_some());
        fits.then(|| CounterBinding { places: Arc::clone(places), counters })
    }

    /// Overwrites the fields for counters in the code of a part.
    pub fn write_over(&self, part: SnippetPart, code: &mut [u8]) {
        for place in self.places.iter().filter(|place| place.part == part) {
            let (Some(value), Some(field)) = (place.value(self.counters), code.get_mut(place.at..)) else { continue };
            let bytes = value.to_le_bytes();
            let len = if place.wide { 8 } else { 4 };
            field.iter_mut().zip(bytes).take(len).for_each(|(field, byte)| *field = byte);
        }
    }
}

impl<'a> Templates<'a> {
    /// Returns code for a snippet that is more than a count, and the counters to write over it.
    pub(crate) fn compile(
        &mut self,
        env: &Environment,
        frame: &BaseState,
        request: &MiniRequest<'a>,
    ) -> Result<(Arc<Codes>, Option<CounterBinding<'a>>), CodegenError> {
        let form = PointForm {
            stack: frame.stack,
            private: frame.private.is_some(),
            rax_free: frame.rax_free,
            pushed: frame.pushed,
        };
        let anew = |counters: &[u32]| {
            mini::compile_anew(env, frame, &MiniRequest { id: request.id, snippet: request.snippet, counters })
        };
        let same = |other: &Snippet| std::ptr::eq(other, request.snippet) || other == request.snippet;
        let known = self.0.iter_mut().rev().find(|t| t.form == form && same(t.snippet));
        let Some(template) = known else {
            let codes = Arc::new(anew(request.counters)?);
            if self.0.len() == KEPT {
                self.0.remove(0);
            }
            let (snippet, places) = (request.snippet, CounterFields::NotSought);
            self.0.push(Template { snippet, form, codes: Arc::clone(&codes), places });
            return Ok((codes, None));
        };
        if let CounterFields::NotSought = template.places {
            template.codes = Arc::new(anew(request.counters)?);
            let shifted: Vec<u32> = (0..).zip(request.counters).map(|(v, c)| c.wrapping_add(shift(v))).collect();
            let other = Some(&shifted).filter(|c| c.len() <= VARIABLES_MAX).and_then(|c| anew(c).ok());
            let places = other.and_then(|other| {
                let places = places(&template.codes, &other, request.counters)?.into();
                (with(&template.codes, &CounterBinding::new(&places, &shifted)?) == other).then_some(places)
            });
            template.places = places.map_or(CounterFields::None, CounterFields::Known);
        }
        let bound = match &template.places {
            CounterFields::Known(places) => CounterBinding::new(places, request.counters),
            CounterFields::NotSought | CounterFields::None => None,
        };
        match bound {
            Some(bound) => Ok((Arc::clone(&template.codes), Some(bound))),
            None => Ok((Arc::new(anew(request.counters)?), None)),
        }
    }
}

/// Number by which the counter of a variable is shifted in order to find its fields. The number is odd: a displacement changes by eight
/// times as much as an index, so the two cannot be confused.
fn shift(variable: u32) -> u32 {
    2 * variable + 1
}

/// Finds the fields for counters by comparing code with code for shifted counters. Returns `None` if the two differ in anything else.
fn places(one: &Codes, other: &Codes, counters: &[u32]) -> Option<Vec<CounterField>> {
    let mut places = Vec::new();
    for part in SnippetPart::ALL {
        let (Some(one), Some(other)) = (one.part(part), other.part(part)) else { continue };
        let mut decoders = [one, other].map(|code| Decoder::new(64, &code.bytes, DecoderOptions::NONE));
        while decoders.iter().all(|d| d.can_decode()) {
            let at = decoders[0].position();
            let [mine, its] = decoders.each_mut().map(Decoder::decode);
            if mine.len() != its.len() || mine.code() != its.code() {
                return None;
            }
            for (offset, size) in fields(&decoders[0].get_constant_offsets(&mine)) {
                let field = |code: &SnippetCode| number(code.bytes.get(at + offset..at + offset + size)?);
                let (value, shifted) = (field(one)?, field(other)?);
                if value == shifted {
                    continue;
                }
                let by = |v: usize, scale: i64| scale * i64::from(shift(v as u32)) == shifted - value;
                let found = (0..counters.len()).find_map(|v| Some((v, [8, 1].into_iter().find(|s| by(v, *s))?)));
                let (variable, scale) = found.filter(|_| size >= 4)?;
                let base = value - scale * i64::from(*counters.get(variable)?);
                places.push(CounterField { part, at: at + offset, wide: size == 8, variable, scale, base });
            }
        }
    }
    Some(places)
}

/// Offset and size in bytes of an instruction's displacement and immediate value.
fn fields(constants: &ConstantOffsets) -> impl Iterator<Item = (usize, usize)> + use<> {
    let displacement = (constants.displacement_offset(), constants.displacement_size());
    let immediate = (constants.immediate_offset(), constants.immediate_size());
    [displacement, immediate].into_iter().filter(|(_, size)| *size > 0)
}

/// Value of a little-endian signed number.
fn number(bytes: &[u8]) -> Option<i64> {
    Some(match bytes {
        [a] => i64::from(a.cast_signed()),
        [a, b] => i64::from(i16::from_le_bytes([*a, *b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
        _ => i64::from_le_bytes(*bytes.first_chunk()?),
    })
}

/// Copy of code for other counters.
fn with(codes: &Codes, bound: &CounterBinding<'_>) -> Codes {
    let mut copy = codes.clone();
    for part in SnippetPart::ALL {
        if let Some(code) = copy.part_mut(part) {
            bound.write_over(part, &mut code.bytes);
        }
    }
    copy
}

#[cfg(test)]
mod tests {
    use ingraft_model::{
        Avma, BinaryOp, CallRecord, Clock, CpuClock, DataArea, Expr, Gpr, KeptValue, Restore, Scale, Stmt,
        ThreadIdentity, VariableId,
    };

    use super::*;
    use crate::code::block::Back;
    use crate::code::environment::Readable;

    const V: [VariableId; 3] = [VariableId(0), VariableId(1), VariableId(2)];

    fn environment() -> Environment {
        Environment {
            data: DataArea { base: Avma(0x7fd0_0000), stride: 1 << 20, shards: 16, journal_bytes: 0 },
            identity: ThreadIdentity::FsOffset(0x2d0),
            shadow_stack: false,
            ticks: Scale::ONE,
            wall: ingraft_model::WallClock::Tsc,
            cpu: CpuClock::None,
            vectors: None,
            loader: None,
            goroutine: None,
            stacks: false,
            readable: Readable { start: Avma(0), end: Avma(0), process: None },
        }
    }

    fn frame(pushed: u8) -> BaseState {
        let private = Some((Gpr(0), 0x1000));
        BaseState { home: Back::StepOut, stack: StackView::FUNCTION, private, rax_free: true, pushed }
    }

    /// Snippet with a flag, a timer and a record that depend on a constraint.
    fn timer() -> Snippet {
        let restore = Some(Restore::Timer(V[1], Clock::Wall));
        let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(0)];
        let record = CallRecord { activations: V[0], restore, kept };
        let met = Expr::Binary(BinaryOp::Greater, Box::new(Expr::Variable(V[2])), Box::new(Expr::Const(0)));
        let body = vec![Stmt::Open(record, vec![Stmt::Start(V[1], Clock::Wall)])];
        Snippet { stmts: vec![Stmt::Add(V[2], Expr::Const(1)), Stmt::If(met, body)] }
    }

    #[test]
    fn what_is_written_over_is_what_would_be_compiled() {
        let (env, mut templates) = (environment(), Templates::default());
        // The counters of the three variables: in several orders, at both ends of a shard, and one counter for all three.
        let last = env.data.counters() - 1;
        for (snippet, fields) in
            [(timer(), true), (Snippet { stmts: vec![Stmt::Add(V[0], Expr::Number(V[1]))] }, false)]
        {
            let bound = [[5, 300, 6], [900, 2, 1000], [0, 1, 3], [last, last - 2, last - 3], [700, 700, 700]];
            for (n, counters) in bound.iter().enumerate() {
                let request = MiniRequest { id: 1, snippet: &snippet, counters };
                for frame in [frame(0), frame(2)] {
                    let (code, bound) = templates.compile(&env, &frame, &request).unwrap();
                    let code = bound.map_or_else(|| Codes::clone(&code), |bound| with(&code, &bound));
                    assert_eq!(code, mini::compile_anew(&env, &frame, &request).unwrap(), "{snippet} {counters:?}");
                }
                let known = templates.0.iter().all(|t| matches!(t.places, CounterFields::Known(_)));
                assert_eq!(known, n > 0 && fields, "{snippet}");
            }
            templates = Templates::default();
        }
    }

    #[test]
    fn only_so_many_are_kept() {
        let snippet = |n: i64| Snippet { stmts: vec![Stmt::Add(V[0], Expr::Const(n + 2))] };
        let snippets: Vec<Snippet> = (0..100).map(snippet).collect();
        let (env, mut templates) = (environment(), Templates::default());
        for snippet in &snippets {
            templates.compile(&env, &frame(0), &MiniRequest { id: 1, snippet, counters: &[7] }).unwrap();
        }
        assert_eq!(templates.0.len(), KEPT);
    }
}
