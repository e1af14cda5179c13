# A web server in Perl: one process; each request sorts, matches and packs text, and dies in nested evals. Prints `port N`.
use strict;
use warnings;
use IO::Socket::INET;

$| = 1;
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 64, Proto => 'tcp') or die "listen: $@";
print 'port ', $server->sockport, "\n";

sub deep {
    my ($depth) = @_;
    die "deep\n" if $depth == 0;
    return deep($depth - 1);
}

sub part {
    my ($seed) = @_;
    my %sums;
    $sums{$_ * $seed % 101} += $_ for 1 .. 200;
    my $text = join ',', map { "$_=$sums{$_}" } sort { $a <=> $b } keys %sums;
    my $found = () = $text =~ /(\d)\1/g;
    (my $other = $text) =~ s/(\d+)=(\d+)/$2:$1/g;
    eval { deep(8); 1 } or $found++;
    return sprintf '%d-%08x', $found, unpack '%32C*', $other;
}

while (my $client = $server->accept) {
    $client->autoflush(1);
    while (defined(my $line = <$client>)) {
        next unless $line eq "\r\n";
        my $body = join ' ', map { part($_) } 7, 13;
        print $client "HTTP/1.1 200 OK\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
    }
    close $client;
}
