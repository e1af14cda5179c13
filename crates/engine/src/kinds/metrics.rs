//! Metrics: the values of metrics at foci. The session reads the values of pairs for all kinds, so this kind only evaluates its request.

use crate::error::{Error, Reason};
use crate::measure::request::{self, WantedPair};
use crate::session::{KindRequest, Running};

/// The values of metrics at foci.
pub struct MetricsKind;

impl Running for MetricsKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let wanted = request::of_metrics(asked.library, asked.modules, asked.request, asked.missing)?;
        match wanted.iter().find(|wanted| !wanted.instrumentation.records.is_empty()) {
            None => Ok(wanted),
            Some(prints) => {
                let what = format!("the metric `{}` prints calls", prints.pair.metric);
                Err(Error::new(Reason::NoPrint, what, "use `ingraft print`"))
            }
        }
    }
}
