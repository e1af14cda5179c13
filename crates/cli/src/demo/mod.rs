//! `ingraft demo`: a demonstration on one page, on a server of its own. It attaches under load, counts, compares the counts with the
//! server's own tally, removes, and looks for traces without trusting the engine.

mod evidence;
mod load;
mod page;
pub(crate) mod server;

use std::io::{self, BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ingraft_api::{EnableRequest, Enabled, Reading, Terms};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::args::DemoArgs;
use crate::conn::{Client, InsertionRequest, RequestTarget, StreamEvent};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::CommandContext;
use crate::objects;
use crate::output::Output;
use crate::output::progress::Progress;
use crate::signals::Signals;
use evidence::CodeCopy;
use load::Load;
use page::DemoPage;
use server::{FUNCTIONS, Tallies};

/// Time for which the load runs before anything is inserted.
const BEFORE: Duration = Duration::from_millis(700);
/// Time between two lines of the live table.
const INTERVAL: Duration = Duration::from_millis(250);
/// Longest time for the server's start; a server that exceeds it has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub(crate) async fn run(args: DemoArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    if !context.engines.is_embedded() {
        let hint = "leave --daemon (INGRAFT_DAEMON) out; the demo brings everything with it";
        return Err(Failure::usage("the demo uses the engine inside this command", hint).into());
    }
    let [client] = context.engines.clients() else {
        return Err(Failure::failed("no engine", "run the demo without --daemon").into());
    };
    let mut signals = Signals::take()?;
    let mut server = Server::start().await.map_err(|e| trouble("the server did not start", &e))?;
    let load = Load::start(server.address).map_err(|e| trouble("the clients did not start", &e))?;
    let mut page = DemoPage::new(out);
    let stage = DemoStage { client, server: &server, load: &load, context: &context };

    let before = stage.before(&mut page).await?;
    let enabled = stage.attach(&mut page).await?;
    // From here on, the measurement is removed in every case.
    let counted = stage.count(&enabled, args.duration, &mut signals, &mut page).await;
    let removed = stage.remove(&enabled, &before, &mut page).await;
    if let Ok(Some(status)) = server.child.try_wait() {
        return Err(trouble("the server ended", &io::Error::other(status.to_string())));
    }
    if let Some(failure) = load.failure() {
        return Err(trouble("a client failed", &io::Error::other(failure)));
    }
    counted?;
    removed?;
    page.verdict()
}

/// Returns a failure of the demo itself, not of a command that it shows.
fn trouble(what: &str, error: &dyn std::error::Error) -> Stop {
    Failure::failed(format!("{what}: {error}"), "run the demo again; if it stays so, please report it").into()
}

/// The server, which is a process of its own.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts this program again as the server and waits until it listens.
    async fn start() -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("demo-server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must not reach the server, which must live until everything is removed from it.
            .process_group(0)
            .spawn()?;
        let stdout = child.stdout.take();
        let mut server = Server { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            let mut stdout = BufReader::new(stdout.ok_or(io::ErrorKind::BrokenPipe)?).take(100);
            stdout.read_line(&mut line).map(|_| line)
        });
        let line = timeout(PATIENCE, line).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        let line = line.map_err(io::Error::other)??;
        server.address = line.trim().parse().map_err(io::Error::other)?;
        Ok(server)
    }

    fn pid(&self) -> i32 {
        // Process ids fit, because the kernel's limit is 2^22.
        i32::try_from(self.child.id()).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The client, server, load and context that all steps need.
struct DemoStage<'a> {
    client: &'a Client,
    server: &'a Server,
    load: &'a Load,
    context: &'a CommandContext<'a>,
}

/// State of the server before anything was inserted.
struct Untouched {
    code: CodeCopy,
    mappings: Vec<String>,
}

impl DemoStage<'_> {
    async fn before(&self, page: &mut DemoPage<'_>) -> Result<Untouched, Stop> {
        let pid = self.server.pid();
        let answered = self.load.answered();
        let start = Instant::now();
        tokio::time::sleep(BEFORE).await;
        let rate = (self.load.answered() - answered) as f64 / start.elapsed().as_secs_f64();
        let slowest = self.load.take_slowest();
        let read = || -> io::Result<_> {
            Ok((Untouched { code: CodeCopy::read(pid)?, mappings: evidence::mappings(pid)? }, evidence::threads(pid)?))
        };
        let (untouched, threads) = read().map_err(|e| trouble("cannot look at the server", &e))?;
        page.server(pid, threads, &self.server.address.to_string(), rate, slowest)?;
        Ok(untouched)
    }

    async fn attach(&self, page: &mut DemoPage<'_>) -> Result<Enabled, Stop> {
        self.load.take_slowest();
        let started = Instant::now();
        let measure = EnableRequest {
            functions: FUNCTIONS.iter().map(|f| format!("*demo::server::{f}")).collect(),
            function_metrics: vec!["calls".to_owned()],
            ..EnableRequest::default()
        };
        let request =
            InsertionRequest { target: RequestTarget::Pid(self.server.pid()), measure, terms: Terms::default() };
        let mut progress = Progress::new("reading the server's code", self.context.common.format);
        let (_, enabled) = self.client.enable(&request, &mut progress).await?;
        drop(progress);
        let attach_ms = started.elapsed().as_secs_f64() * 1e3;
        // After a moment, the answers that were on the way have arrived.
        tokio::time::sleep(Duration::from_millis(50)).await;
        page.attached(&enabled, attach_ms, self.load.take_slowest())?;
        Ok(enabled)
    }

    /// Counts for the given time, then compares the counts with the server's tally.
    async fn count(
        &self,
        enabled: &Enabled,
        duration: Duration,
        signals: &mut Signals,
        page: &mut DemoPage<'_>,
    ) -> Result<(), Stop> {
        let order = order(enabled)?;
        // The load is paused while both numbers are read, so that no call falls between the two readings.
        let (tally_before, count_before) = self.both(enabled).await?;
        self.load.resume();
        let answered = self.load.answered();
        let start = Instant::now();
        self.show(enabled, &order, duration, signals, page).await?;
        let rate = (self.load.answered() - answered) as f64 / start.elapsed().as_secs_f64();
        page.counted(rate, self.load.take_slowest())?;
        let (tally_after, count_after) = self.both(enabled).await?;
        let tallied = difference(&tally_after, &tally_before);
        let counted = difference(&by_thread(&count_after, &order), &by_thread(&count_before, &order));
        let totals = order.map(|pair| count_after.values[pair].value - count_before.values[pair].value);
        page.compared(&totals, &counted, &tallied)
    }

    /// Pauses the load, then reads the server's tally and the measurement's counts.
    async fn both(&self, enabled: &Enabled) -> Result<(Tallies, Reading), Stop> {
        tokio::task::block_in_place(|| self.load.pause())
            .map_err(|e| trouble("the load cannot be paused", &io::Error::other(e)))?;
        let ask = || -> io::Result<Tallies> {
            let mut connection: BufReader<TcpStream> = load::connect(self.server.address)?;
            server::ask_tally(&mut connection)
        };
        let tallies = tokio::task::block_in_place(ask).map_err(|e| trouble("the server does not say its tally", &e))?;
        let reading = self.client.read(enabled.id, enabled.pairs.len()).await?;
        Ok((tallies, reading))
    }

    /// Shows calls per second until the time is over or the user asks for the end.
    async fn show(
        &self,
        enabled: &Enabled,
        order: &[usize; FUNCTIONS.len()],
        duration: Duration,
        signals: &mut Signals,
        page: &mut DemoPage<'_>,
    ) -> Result<(), Stop> {
        let (events, mut arriving) = mpsc::channel(8);
        let stream = self.client.clone().stream(enabled.id, enabled.pairs.len(), INTERVAL, 0, events);
        let stream = tokio::spawn(stream);
        let over = tokio::time::sleep(duration);
        tokio::pin!(over);
        let mut before: Option<Reading> = None;
        let result = loop {
            tokio::select! {
                biased;
                () = signals.asked() => break Ok(()),
                () = &mut over => break Ok(()),
                event = arriving.recv() => match event {
                    Some((_, Ok(StreamEvent::Reading(reading, _)))) => {
                        if let Err(stop) = page.live(&reading, before.as_ref(), order) {
                            break Err(stop);
                        }
                        before = Some(reading);
                    }
                    // The request names its functions one by one, so a library cannot add any. It is no trace with a condition.
                    Some((_, Ok(StreamEvent::Grown(_) | StreamEvent::Held))) => {}
                    Some((_, Err(failure))) => break Err(failure.into()),
                    Some((_, Ok(StreamEvent::Ended(_)))) | None => {
                        break Err(Failure::failed("the demo's server ended", "run the demo again; if it stays so, please report it").into());
                    }
                }
            }
        };
        stream.abort();
        result
    }

    /// Removes the measurement and looks for traces.
    async fn remove(&self, enabled: &Enabled, before: &Untouched, page: &mut DemoPage<'_>) -> Result<(), Stop> {
        // The measurement is removed under load, as it was inserted.
        self.load.resume();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (removed, _) = self.client.remove(enabled.id, enabled.pairs.len()).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let pid = self.server.pid();
        let mut look = || -> io::Result<()> {
            let code = CodeCopy::read(pid)?;
            let changed = code.differs_from(&before.code);
            let foreign = code.differs_from_files()?;
            let mappings = evidence::mappings(pid)?;
            let left = mappings.into_iter().find(|m| !before.mappings.contains(m));
            let tracer = evidence::tracer(pid)?;
            page.traces(code.len(), code.files(), changed.or(foreign), left, tracer);
            Ok(())
        };
        let looked = look();
        page.removed(objects::RemovedObject::new(&removed, None))?;
        looked.map_err(|e| trouble("cannot look at the server", &e))?;
        page.clients(self.load.answered(), self.load.failure())
    }
}

/// Returns for each function the index of the pair that counts it.
fn order(enabled: &Enabled) -> Result<[usize; FUNCTIONS.len()], Stop> {
    let mut order = [usize::MAX; FUNCTIONS.len()];
    for (pair, info) in enabled.pairs.iter().enumerate() {
        let name = info.function.as_ref().map_or("", |f| f.function.as_str());
        if let Some(i) = FUNCTIONS.iter().position(|f| name.ends_with(f)) {
            order[i] = pair;
        }
    }
    if order.contains(&usize::MAX) || enabled.pairs.len() != FUNCTIONS.len() {
        let hint = "this program must not be stripped: its symbols name the functions to count";
        let what = format!("{} of the server's {} functions were found", enabled.pairs.len(), FUNCTIONS.len());
        return Err(Failure::new(Exit::NotFound, what, hint).into());
    }
    Ok(order)
}

/// The measurement's counts in the form of the server's tally. Calls that cannot be told apart by thread count for thread 0.
fn by_thread(reading: &Reading, order: &[usize; FUNCTIONS.len()]) -> Tallies {
    let mut tallies = Tallies::new();
    for (i, &pair) in order.iter().enumerate() {
        let threads = reading.values.get(pair).map(|v| v.details().threads.as_slice()).unwrap_or_default();
        for thread in threads {
            tallies.entry(thread.tid.map_or(0, |tid| tid.0)).or_default()[i] +=
                u64::try_from(thread.value).unwrap_or(0);
        }
    }
    tallies
}

/// Returns the calls of each thread between two tallies; threads without calls are left out.
fn difference(after: &Tallies, before: &Tallies) -> Tallies {
    let mut tallies = Tallies::new();
    for (tid, calls) in after {
        let earlier = before.get(tid).copied().unwrap_or_default();
        let added: [u64; FUNCTIONS.len()] = std::array::from_fn(|i| calls[i].wrapping_sub(earlier[i]));
        if added.iter().any(|&n| n != 0) {
            tallies.insert(*tid, added);
        }
    }
    tallies
}
